// A headless Chromium, driven by chromedriver over HTTP: what it takes to look at a page, to measure it and to take its picture.

const { spawn } = require('child_process');
const fs = require('fs');
const os = require('os');
const path = require('path');

const ARGUMENTS = [
  '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--hide-scrollbars', '--force-device-scale-factor=1',
];

class Browser {
  static async start(width, height) {
    const browser = new Browser();
    browser.folder = fs.mkdtempSync(path.join(os.tmpdir(), 'millpond-browser-'));
    browser.driver = spawn('chromedriver', ['--port=0'], { stdio: ['ignore', 'pipe', 'ignore'] });
    const port = await new Promise((done, failed) => {
      let text = '';
      browser.driver.stdout.on('data', (data) => {
        text += data;
        const found = text.match(/successfully on port (\d+)/);
        if (found) done(Number(found[1]));
      });
      browser.driver.on('error', failed);
      browser.driver.on('exit', () => failed(new Error(`chromedriver ended: ${text}`)));
    });
    browser.base = `http://127.0.0.1:${port}/session`;
    const options = { args: [...ARGUMENTS, `--user-data-dir=${browser.folder}`, `--window-size=${width},${height}`] };
    const capabilities = { alwaysMatch: { browserName: 'chrome', 'goog:chromeOptions': options, 'goog:loggingPrefs': { browser: 'ALL' } } };
    const { sessionId } = await browser.ask('POST', '', { capabilities });
    browser.base += `/${sessionId}`;
    await browser.size(width, height);
    return browser;
  }

  async ask(method, at, body) {
    const answer = await fetch(this.base + at, { method, body: body && JSON.stringify(body) });
    const { value } = await answer.json();
    if (value?.error) throw new Error(`${at}: ${value.message}`);
    return value;
  }

  cdp(cmd, params = {}) {
    return this.ask('POST', '/goog/cdp/execute', { cmd, params });
  }

  size(width, height) {
    return this.cdp('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: false });
  }

  scheme(value) {
    return this.cdp('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] });
  }

  go(url) {
    return this.ask('POST', '/url', { url });
  }

  run(script, ...args) {
    return this.ask('POST', '/execute/sync', { script, args });
  }

  async until(script, limit = 60_000) {
    const end = Date.now() + limit;
    while (!(await this.run(`return ${script}`))) {
      if (Date.now() > end) throw new Error(`in ${limit / 1000} s it did not come to: ${script}`);
      await new Promise((done) => setTimeout(done, 20));
    }
  }

  // A key as a person presses it, on whatever has the focus.
  async key(key) {
    const special = { Home: 36, Escape: 27, ArrowLeft: 37, ArrowRight: 39, ArrowUp: 38, ArrowDown: 40, Enter: 13 };
    const code = { key, windowsVirtualKeyCode: special[key] ?? key.toUpperCase().charCodeAt(0), text: special[key] ? undefined : key };
    await this.cdp('Input.dispatchKeyEvent', { type: 'keyDown', ...code });
    await this.cdp('Input.dispatchKeyEvent', { type: 'keyUp', ...code });
  }

  // The pointer over a part of an element, from its left and top edge.
  async point(selector, x, y, type = 'mouseMoved') {
    const [left, top] = await this.run('const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.left, box.top]', selector);
    const buttons = type === 'mouseMoved' ? {} : { button: 'left', buttons: 1, clickCount: 1 };
    await this.cdp('Input.dispatchMouseEvent', { type, x: left + x, y: top + y, ...buttons });
  }

  async click(selector, x, y) {
    await this.point(selector, x, y);
    await this.point(selector, x, y, 'mousePressed');
    await this.point(selector, x, y, 'mouseReleased');
  }

  async picture(file, height) {
    const clip = height && { x: 0, y: 0, width: await this.run('return innerWidth'), height, scale: 1 };
    const { data } = await this.cdp('Page.captureScreenshot', { format: 'png', captureBeyondViewport: Boolean(height), ...(clip && { clip }) });
    fs.writeFileSync(file, Buffer.from(data, 'base64'));
  }

  // Errors that the page has told the console.
  async complaints() {
    const all = await this.ask('POST', '/se/log', { type: 'browser' });
    return all.filter((entry) => entry.level === 'SEVERE' && !entry.message.includes('favicon')).map((entry) => entry.message);
  }

  async quit() {
    await this.ask('DELETE', '').catch(() => {});
    this.driver.kill();
    fs.rmSync(this.folder, { recursive: true, force: true });
  }
}

module.exports = { Browser };
