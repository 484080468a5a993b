// Uses a page as a person does, and prints what it says as JSON: node check.js <url>. Fails where the page complains, where something of a
// name has become an element, where it is wider than a narrow screen, or where it can be driven into an error by its own keys.

const { Browser } = require('./browser.js');

const KEYS = '+ + + ArrowRight ArrowLeft [ ] { } , . j k g g g g g g w w w w s s r r u u m m t t b b y y d d - - - - Home p Escape ? ?'.split(' ');

const SAID = `
  const text = (id) => document.getElementById(id).innerText;
  return {
    title: document.title,
    answers: text('answers'),
    legend: text('legend'),
    figures: text('figures'),
    facts: text('facts-line'),
    missing: text('missing-list'),
    holders: text('holders'),
    sums: text('sums-note'),
    state: document.getElementById('state').hidden ? '' : text('state'),
    images: document.images.length,
    scripts: [...document.scripts].filter((script) => script.type === '' || script.type === 'text/javascript').length,
  };
`;

(async () => {
  const browser = await Browser.start(1280, 900);
  const fail = (what) => {
    throw new Error(what);
  };
  try {
    await browser.go(process.argv[2]);
    await browser.until("document.documentElement.dataset.answered === 'yes'", 120_000);
    await new Promise((done) => setTimeout(done, 500));
    const said = await browser.run(SAID);
    if (said.images !== 0 || said.scripts !== 1) fail(`${said.images} images and ${said.scripts} scripts`);
    for (const key of KEYS) await browser.key(key);
    await browser.click('canvas.timeline', 400, 300);
    await browser.click('#flame', 300, 30);
    await browser.point('canvas.timeline', 500, 300);
    const policies = await browser.run("return [...document.querySelectorAll('#what-if option')].map((option) => option.value).filter(Boolean)");
    for (const policy of policies.slice(0, 2)) {
      await browser.run("const list = document.getElementById('what-if'); list.value = arguments[0]; list.dispatchEvent(new Event('change'))", policy);
      const shown = "document.getElementById('what-if-list').innerText";
      await browser.until(`${shown}.includes('${policy}') && !${shown}.includes('…')`);
    }
    said.replays = await browser.run("return document.getElementById('what-if-list').innerText");
    if (await browser.run("return !document.getElementById('by-step').hidden")) {
      await browser.click('#step-peaks', 300, 60);
      await browser.run("const step = document.getElementById('step-a'); step.value = 1; step.dispatchEvent(new Event('change'))");
      said.steps = await browser.run("return document.getElementById('step-head').innerText + '\\n' + document.getElementById('step-rows').innerText");
    }
    for (const scheme of ['dark', 'light']) {
      await browser.scheme(scheme);
      for (const [width, height] of [[1280, 900], [390, 844]]) {
        await browser.size(width, height);
        await new Promise((done) => setTimeout(done, 300));
        const wide = await browser.run('return document.documentElement.scrollWidth');
        if (wide > width) fail(`it is ${wide} wide on a screen of ${width}`);
      }
    }
    const complaints = await browser.complaints();
    if (complaints.length > 0) fail(complaints.join('\n'));
    console.log(JSON.stringify(said));
  } finally {
    await browser.quit();
  }
})().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
