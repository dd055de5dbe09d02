'use strict';
(() => {
  const KEPT = 600, WIDTH = 480, HEIGHT = 160, PAD = 24;
  const get = (id) => document.getElementById(id);
  const write = (id, text) => { const e = get(id); if (e.textContent !== text) e.textContent = text; };
  const show = (x) => Math.abs(x) >= 1000 ? Math.round(x).toLocaleString('en').replaceAll(',', ' ') :
    String(+x.toPrecision(3));
  const CHARTS = ['entropy', 'alpha', 'parameter_distance', 'effective_classes', 'batch_share', 'seconds'];
  let entries = [], last = 0, uptime = 0, paused = false;

  const draw = (key) => {
    const points = entries.filter((e) => e[key] !== null).map((e) => [e.at, e[key]]);
    if (!points.length) return;
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const left = Math.min(...xs), right = Math.max(...xs), low = Math.min(...ys), high = Math.max(...ys);
    const span = high - low || 1;
    const x = (v) => right > left ? (v - left) / (right - left) * WIDTH : WIDTH / 2;
    const y = (v) => HEIGHT - PAD - (v - low) / span * (HEIGHT - 2 * PAD);
    const path = points.map((p) => x(p[0]).toFixed(1) + ',' + y(p[1]).toFixed(1));
    if (path.length === 1) path.push(WIDTH + ',' + path[0].split(',')[1]);
    get('line-' + key).setAttribute('points', path.join(' '));
    const now = show(ys[ys.length - 1]), chart = get('chart-' + key);
    write('high-' + key, show(high));
    write('low-' + key, show(low));
    write('now-' + key, now);
    chart.setAttribute('aria-label',
      chart.dataset.name + ': now ' + now + ', between ' + show(low) + ' and ' + show(high));
  };

  const events = () => {
    const noted = (e) => e && e.guard && e.guard.action === 'note';
    const guarded = entries.filter((e, k) => e.guard && !(noted(e) && noted(entries[k - 1]))).slice(-50).reverse();
    get('no-events').hidden = guarded.length > 0;
    get('event-table').hidden = guarded.length === 0;
    get('events').replaceChildren(...guarded.map((e) => {
      const row = document.createElement('tr');
      const done = (e.guard.causes || []).join(', ') + ': ' + e.guard.action;
      for (const text of [e.change, Math.max(0, Math.round(uptime - e.at)), done]) {
        row.insertCell().textContent = text;
      }
      return row;
    }));
  };

  const update = (state) => {
    if (state.changes < last || state.uptime < uptime) { last = 0; entries = []; }
    uptime = state.uptime;
    entries = entries.concat(state.history).slice(-KEPT);
    if (entries.length) last = entries[entries.length - 1].change;
    write('about', state.method + ' on ' + state.network + ', ' + state.class_names.length + ' classes, bundle ' +
      state.bundle.slice(0, 12) + ', vcotta ' + state.version + '.');
    for (const key of ['images', 'updates', 'steps', 'waiting', 'guarded', 'skipped']) {
      write('tile-' + key, show(state[key]));
    }
    CHARTS.forEach(draw);
    get('few-classes').hidden = !state.low_diversity;
    events();
    write('message', entries.length ? '' : 'No batch yet.');
  };

  const ask = async () => {
    let failed = false;
    if (!paused) {
      try {
        const answer = await fetch('v1/state?since=' + last, {cache: 'no-store'});
        if (!answer.ok) throw new Error('status ' + answer.status);
        update(await answer.json());
      } catch (error) {
        failed = true;
        write('message', 'The server does not answer. Trying again every few seconds.');
      }
      get('message').className = failed ? 'bad' : 'soft';
    }
    setTimeout(ask, failed ? 3000 : 1000);
  };
  get('pause').addEventListener('click', () => {
    paused = !paused;
    get('pause').setAttribute('aria-pressed', String(paused));
    write('pause', paused ? 'Continue' : 'Pause');
  });
  ask();
})();
