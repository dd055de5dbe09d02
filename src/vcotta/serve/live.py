"""The status page's script: asks for news, draws them, and says when nobody answers."""

__all__ = ["SCRIPT"]

SCRIPT = """
'use strict';
(() => {
  const KEPT = 600, WIDTH = 480, HEIGHT = 160, PAD = 24;
  const get = (id) => document.getElementById(id);
  const say = (id, text) => { const e = get(id); if (e.textContent !== text) e.textContent = text; };
  const show = (x) => x === null || x === undefined ? '-' :
    Math.abs(x) >= 1000 ? Math.round(x).toLocaleString('en').replaceAll(',', ' ') : String(+x.toPrecision(3));
  let entries = [], last = 0, uptime = 0, paused = false;

  const rates = () => {
    if (!entries.length) return [];
    const end = uptime, start = Math.max(0, Math.min(entries[0].at, end - 10));
    const width = Math.max(1, (end - start) / 60), count = Math.max(1, Math.ceil((end - start) / width));
    const sums = new Array(count).fill(0);
    for (const e of entries) sums[Math.min(count - 1, Math.floor((e.at - start) / width))] += e.images;
    return sums.slice(0, Math.max(1, count - 1)).map((n, i) => [start + (i + 0.5) * width, n / width]);
  };

  const draw = (key, points) => {
    const name = get('chart-' + key).getAttribute('aria-label').split(':')[0];
    if (!points.length) return;
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const left = Math.min(...xs), right = Math.max(...xs);
    let low = Math.min(...ys), high = Math.max(...ys);
    if (high - low < 1e-12) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
    const x = (v) => right > left ? (v - left) / (right - left) * WIDTH : WIDTH / 2;
    const y = (v) => HEIGHT - PAD - (v - low) / (high - low) * (HEIGHT - 2 * PAD);
    const path = points.map((p) => x(p[0]).toFixed(1) + ',' + y(p[1]).toFixed(1));
    if (path.length === 1) path.push(WIDTH + ',' + path[0].split(',')[1]);
    get('line-' + key).setAttribute('points', path.join(' '));
    const now = show(ys[ys.length - 1]);
    say('high-' + key, show(Math.max(...ys)));
    say('low-' + key, show(Math.min(...ys)));
    say('now-' + key, now);
    get('chart-' + key).setAttribute('aria-label',
      name + ': now ' + now + ', between ' + show(Math.min(...ys)) + ' and ' + show(Math.max(...ys)));
  };

  const events = () => {
    const guarded = entries.filter((e) => e.guard).slice(-50).reverse();
    get('no-events').hidden = guarded.length > 0;
    get('event-table').hidden = guarded.length === 0;
    const rows = guarded.map((e) => {
      const row = document.createElement('tr');
      for (const text of [e.change, Math.max(0, Math.round(uptime - e.at)), JSON.stringify(e.guard)]) {
        const cell = document.createElement('td');
        cell.textContent = text;
        row.append(cell);
      }
      return row;
    });
    get('events').replaceChildren(...rows);
  };

  const take = (state) => {
    if (state.uptime < uptime) entries = [];
    uptime = state.uptime;
    entries = entries.concat(state.history).slice(-KEPT);
    if (entries.length) last = entries[entries.length - 1].change;
    const rate = rates();
    say('about', state.method + ' on ' + state.network + ', ' + state.class_names.length + ' classes, bundle ' +
      state.bundle.slice(0, 12) + ', vcotta ' + state.version + '.');
    say('tile-rate', show(rate.length ? rate[rate.length - 1][1] : 0));
    for (const key of ['images', 'steps', 'waiting', 'guarded', 'skipped']) say('tile-' + key, show(state[key]));
    draw('rate', rate);
    for (const key of ['entropy', 'alpha', 'drift']) {
      draw(key, entries.filter((e) => e[key] !== null).map((e) => [e.at, e[key]]));
    }
    events();
  };

  const ask = async () => {
    if (!paused) {
      try {
        const answer = await fetch('v1/state?since=' + last, {cache: 'no-store'});
        if (!answer.ok) throw new Error('status ' + answer.status);
        const state = await answer.json();
        if (state.changes < last || state.uptime < uptime) { last = 0; entries = []; }
        take(state);
        say('said', entries.length ? '' : 'No batch has come yet.');
        get('said').className = 'soft';
      } catch (error) {
        say('said', 'The server does not answer. Trying again every few seconds.');
        get('said').className = 'bad';
      }
    }
    setTimeout(ask, get('said').className === 'bad' ? 3000 : 1000);
  };
  get('pause').addEventListener('click', () => {
    paused = !paused;
    get('pause').setAttribute('aria-pressed', String(paused));
    say('pause', paused ? 'Go on' : 'Pause');
  });
  ask();
})();
"""
