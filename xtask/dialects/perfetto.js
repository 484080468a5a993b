// Opens a trace in Perfetto's own page, whose trace processor runs in the browser, and prints what it answers as JSON:
// node perfetto.js <folder of the page> <trace>.

const fs = require('fs');
const http = require('http');
const path = require('path');
const { Browser } = require('../src/pictures/browser.js');

const [page, trace] = process.argv.slice(2);

const TYPES = {
  '.css': 'text/css',
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.json': 'application/json',
  '.wasm': 'application/wasm',
};

const QUERIES = {
  errors: "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
  counters: `select t.name as name, p.name as parent, c.value as value from track t left join track p on p.id = t.parent_id
    join counter c on c.id = (select max(id) from counter where track_id = t.id)`,
  slices: `select t.name as name, s.name glob 'refused *' as refused, count(*) as count from slice s join track t on t.id = s.track_id
    group by t.name, refused`,
};

// Asks the page's engine, and leaves the rows where they are found.
const ASK = `
  window.answer = null;
  app.trace.engine.query(arguments[0]).then((result) => {
    const names = result.columns();
    const rows = [];
    for (const it = result.iter({}); it.valid(); it.next()) rows.push(Object.fromEntries(names.map((name) => [name, String(it.get(name))])));
    window.answer = { rows };
  }, (error) => (window.answer = { error: error.message }));
`;

const server = http.createServer((request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  const file = pathname === '/trace' ? trace : path.join(page, pathname === '/' ? 'index.html' : path.normalize(pathname));
  if (!fs.existsSync(file) || !fs.statSync(file).isFile()) {
    response.writeHead(404);
    response.end();
    return;
  }
  response.writeHead(200, { 'Content-Type': TYPES[path.extname(file)] ?? 'application/octet-stream' });
  fs.createReadStream(file).pipe(response);
});

server.listen(0, '127.0.0.1', async () => {
  const base = `http://127.0.0.1:${server.address().port}`;
  let code = 0;
  let browser;
  try {
    browser = await Browser.start(1280, 900);
    await browser.go(`${base}/#!/?url=${base}/trace`);
    await browser.until('Boolean(window.app?.trace?.engine)', 120_000);
    const told = {};
    for (const [name, query] of Object.entries(QUERIES)) {
      await browser.run(ASK, query);
      await browser.until('window.answer !== null');
      const { rows, error } = await browser.run('return window.answer');
      if (error) throw new Error(`${name}: ${error}`);
      told[name] = rows;
    }
    console.log(JSON.stringify(told));
  } catch (error) {
    console.error(error.message);
    code = 1;
  }
  await browser?.quit();
  process.exit(code);
});
