'use strict';
(() => {
  const KEPT = 600, WIDTH = 480, HEIGHT = 160, PAD = 24;
  const get = (id) => document.getElementById(id);
  const write = (id, text) => { const e = get(id); if (e.textContent !== text) e.textContent = text; };
  const show = (x) => Math.abs(x) >= 1000 ? Math.round(x).toLocaleString('en').replaceAll(',', ' ') :
    String(+x.toPrecision(3));
  const CHARTS = ['entropy', 'alpha', 'parameter_distance', 'effective_classes', 'batch_share', 'seconds'];
  const SHOWN = 100;
  let entries = [], last = 0, uptime = 0, paused = false, chosen = 'default';

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
      write('tile-' + key, state[key] === null ? '-' : show(state[key]));
    }
    CHARTS.forEach(draw);
    get('few-classes').hidden = !state.low_diversity;
    events();
    write('message', entries.length ? '' : 'No batch yet.');
  };

  const cell = (row, text, flagged) => {
    const made = row.insertCell();
    made.textContent = text;
    if (flagged) made.className = 'flag';
    return made;
  };

  const streams = (list) => {
    const mib = (bytes) => show(bytes / 1048576) + ' MiB';
    const flagged = list.streams.filter((s) => s.signs.length);
    write('memory', list.total + ' of at most ' + list.most + ' streams, ' + list.in_memory + ' in memory: ' +
      mib(list.held) + ' of ' + mib(list.memory) + '. All share the source network, ' + mib(list.source) + '.');
    get('flagged').hidden = flagged.length === 0;
    write('flagged', flagged.length + (flagged.length === 1 ? ' stream seems' : ' streams seem') +
      ' to do worse than the source: ' + flagged.slice(0, 5).map((s) => s.stream).join(', ') +
      '. An operator can pin it: POST v1/streams/NAME/pin.');
    get('stream-rows').replaceChildren(...list.streams.slice(0, SHOWN).map((s) => {
      const row = document.createElement('tr'), link = document.createElement('a');
      const number = (x) => x === null ? '-' : show(x);
      link.href = '#stream=' + s.stream;
      link.textContent = s.stream;
      if (s.stream === chosen) link.setAttribute('aria-current', 'true');
      cell(row, '').append(link);
      const state = s.pinned ? 'pinned to the source' : s.signs.length ? 'worse: ' + s.signs.join(', ') :
        s.in_memory ? 'adapting' : 'on the disk';
      cell(row, state, s.pinned || s.signs.length);
      const share = s.contradiction === null ? '-' : show(100 * s.contradiction) + ' %';
      for (const text of [show(s.images), number(s.parameter_distance), number(s.effective_classes), share,
        show(s.guarded), show(s.waiting)]) cell(row, text);
      return row;
    }));
    const hidden = list.total - Math.min(SHOWN, list.streams.length);
    get('more-streams').hidden = hidden <= 0;
    write('more-streams', 'And ' + hidden + ' more; v1/streams has them.');
  };

  const choose = (name) => {
    chosen = name;
    write('chosen', chosen);
    write('chosen-now', chosen);
    entries = [];
    last = 0;
    for (const key of CHARTS) {
      get('line-' + key).setAttribute('points', '');
      for (const part of ['high-', 'low-']) write(part + key, '');
      write('now-' + key, '-');
    }
  };

  const named = () => {
    const found = location.hash.match(/^#stream=([a-z0-9][a-z0-9._-]{0,63})$/);
    choose(found ? found[1] : 'default');
  };

  const fetched = async (path) => {
    const answer = await fetch(path, {cache: 'no-store'});
    if (!answer.ok) throw new Error('status ' + answer.status);
    return answer.json();
  };

  const ask = async () => {
    let failed = false;
    if (!paused) {
      try {
        const list = await fetched('v1/streams');
        if (!list.streams.some((s) => s.stream === chosen)) choose('default');
        const asked = chosen, state = await fetched('v1/streams/' + asked + '?since=' + last);
        if (asked === chosen) update(state);
        streams(list);
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
  window.addEventListener('hashchange', named);
  named();
  ask();
})();
