// Light, dark and paper; and switches that say whether they are on.

function press(button, on) {
  button.setAttribute('aria-pressed', String(on));
}

function themes(state) {
  const root = document.documentElement;
  const button = byId('theme');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const refresh = () => {
    readInk();
    state.theme = `${root.dataset.theme ?? 'auto'} ${dark.matches}`;
    state.touch('theme');
  };
  const choose = (theme) => {
    if (theme) root.dataset.theme = theme;
    const now = root.dataset.theme ?? (dark.matches ? 'dark' : 'light');
    button.textContent = now === 'dark' ? 'Light' : 'Dark';
    button.title = `Switch to ${now === 'dark' ? 'light' : 'dark'} (d)`;
    refresh();
  };
  const swap = () => {
    const now = root.dataset.theme ?? (dark.matches ? 'dark' : 'light');
    choose(now === 'dark' ? 'light' : 'dark');
  };
  button.addEventListener('click', swap);
  dark.addEventListener('change', () => choose());
  // Paper is white, whatever the screen is.
  let before;
  window.addEventListener('beforeprint', () => {
    before = root.dataset.theme;
    root.dataset.theme = 'light';
    refresh();
    state.tell();
  });
  window.addEventListener('afterprint', () => {
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
    refresh();
  });
  choose();
  return swap;
}
