'use strict';
(() => {
  const said = document.getElementById('said');
  const value = (row, column) => {
    const cell = row.cells[column];
    const raw = cell.dataset.value;
    if (raw === undefined) return cell.textContent.trim().toLowerCase();
    const number = parseFloat(raw);
    return Number.isNaN(number) ? Infinity : number;
  };
  for (const button of document.querySelectorAll('th button')) {
    button.addEventListener('click', () => {
      const head = button.closest('th');
      const body = head.closest('table').tBodies[0];
      const rising = head.getAttribute('aria-sort') !== 'ascending';
      for (const other of head.parentElement.cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', rising ? 'ascending' : 'descending');
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a, head.cellIndex), y = value(b, head.cellIndex);
        return (x < y ? -1 : x > y ? 1 : 0) * (rising ? 1 : -1);
      });
      body.append(...rows);
      said.textContent = 'Sorted by ' + button.textContent.trim() + ', ' + (rising ? 'lowest' : 'highest') + ' first';
    });
  }
  const root = document.documentElement;
  for (const button of document.querySelectorAll('.legend button')) {
    const name = button.dataset.method;
    const light = (on) => () => root.classList.toggle('only-' + name, on && !root.classList.contains('hide-' + name));
    button.addEventListener('click', () => {
      const hidden = root.classList.toggle('hide-' + name);
      light(false)();
      for (const twin of document.querySelectorAll('.legend button[data-method="' + name + '"]')) {
        twin.setAttribute('aria-pressed', String(!hidden));
      }
    });
    button.addEventListener('mouseenter', light(true));
    button.addEventListener('mouseleave', light(false));
    button.addEventListener('focus', () => { if (button.matches(':focus-visible')) light(true)(); });
    button.addEventListener('blur', light(false));
  }
})();
