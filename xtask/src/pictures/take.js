// Takes pictures of pages: node take.js <JSON of what to take>, an array of { url, out, width, height, scheme, keys, click }.

const { Browser } = require('./browser.js');

async function take({ url, out, width, height, scheme, keys = [], click }) {
  const browser = await Browser.start(width, height);
  try {
    await browser.scheme(scheme);
    await browser.go(url);
    await browser.until("document.documentElement.dataset.told === 'yes' || document.documentElement.dataset.ready === 'yes'");
    for (const key of keys) await browser.key(key);
    // Pictures of blocks follow when the window rests.
    await new Promise((done) => setTimeout(done, 500));
    if (click) await browser.click(...click);
    await new Promise((done) => setTimeout(done, 500));
    const complaints = await browser.complaints();
    if (complaints.length > 0) throw new Error(complaints.join('\n'));
    await browser.picture(out, height);
    console.log(`wrote ${out}`);
  } finally {
    await browser.quit();
  }
}

(async () => {
  for (const picture of JSON.parse(process.argv[2])) await take(picture);
})().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
