// How soon a page shows a recording, and how smoothly it pans: node speed.js <program> <recording>. Prints a table; fails where something is
// grossly wrong only, for machines differ.

const { spawn } = require('child_process');
const { Browser } = require('./browser.js');

// Milliseconds.
const GROSS = { overview: 20_000, frame: 500 };

function quantile(values, part) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(Math.floor(sorted.length * part), sorted.length - 1)] ?? 0;
}

// Pans by the wheel, a step for each frame, and answers how long frames and pictures took.
const PAN = `
  const done = arguments[arguments.length - 1];
  const canvas = document.querySelector('canvas.timeline');
  const root = document.documentElement;
  root.dispatchEvent(new Event('millpond-frames'));
  const frames = [];
  let last = null;
  let left = 120;
  const step = (now) => {
    if (last !== null) frames.push(now - last);
    last = now;
    if (left-- === 0) {
      root.dispatchEvent(new Event('millpond-frames'));
      done({ frames, pictures: JSON.parse(root.dataset.frames) });
      return;
    }
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaX: left > 60 ? 12 : -12, deltaY: 0, bubbles: true, cancelable: true }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
`;

async function main([program, recording]) {
  const browser = await Browser.start(1280, 900);
  const begun = Date.now();
  const server = spawn(program, ['view', '--no-open', '--quiet', recording], { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    const url = await new Promise((done, failed) => {
      server.stdout.once('data', (data) => done(String(data).trim()));
      server.once('exit', (code) => failed(new Error(`the server ended with ${code}`)));
    });
    const opened = Date.now() - begun;
    await browser.go(url);
    const of = (name) => browser.run(`return Number(document.documentElement.dataset.${name} ?? 0)`);
    await browser.until('document.documentElement.dataset.overview', 120_000);
    await browser.until('document.documentElement.dataset.blocks', 300_000);
    const [overview, blocks] = [await of('overview'), await of('blocks')];
    const rows = [
      ['the recording is opened, and its address printed', `${opened} ms`],
      ['the page has painted the overview, after it was asked for', `${overview} ms`],
      ['from the command to the overview, both together', `${opened + overview} ms`],
      ['the page has all blocks, after it was asked for', `${blocks} ms`],
    ];
    let worst = 0;
    for (const [what, zooms] of [['all of it less a little', 1], ['a tenth', 4], ['a thousandth', 9]]) {
      for (let i = 0; i < zooms; i++) await browser.key('+');
      await new Promise((done) => setTimeout(done, 800));
      const { frames, pictures } = await browser.ask('POST', '/execute/async', { script: PAN, args: [] });
      worst = Math.max(worst, quantile(frames, 0.5));
      rows.push([`panning over ${what}: frames, median and 95th`, `${quantile(frames, 0.5).toFixed(1)} and ${quantile(frames, 0.95).toFixed(1)} ms`]);
      rows.push([`  of that the timeline's own work`, `${quantile(pictures, 0.5).toFixed(1)} and ${quantile(pictures, 0.95).toFixed(1)} ms`]);
    }
    const heap = await browser.cdp('Runtime.getHeapUsage').catch(() => null);
    if (heap) rows.push(['memory of the page', `${Math.round((heap.usedSize + (heap.backingStorageSize ?? 0)) / 2 ** 20)} MiB`]);
    const complaints = await browser.complaints();
    for (const [name, value] of rows) console.log(`${name.padEnd(62)}${value}`);
    if (complaints.length > 0) throw new Error(complaints.join('\n'));
    if (opened + overview > GROSS.overview) throw new Error(`the overview took ${opened + overview} ms`);
    if (worst > GROSS.frame) throw new Error(`a frame takes ${worst} ms`);
  } finally {
    server.kill('SIGINT');
    await browser.quit();
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
