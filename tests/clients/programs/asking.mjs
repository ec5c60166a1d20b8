// What the programs for Node ask, as in asking.py.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.SPECRUN_CLIENTS}/package.json`);
export const load = (name) => import(pathToFileURL(require.resolve(name)));

export const [scripted, free] = process.argv.slice(2, 4).map((url) => `${url}/v1`);
export const [ask, greeting, told] = ["What is the weather in Oslo?", "Hello there.", "It rains."];
export const called = { city: "Oslo", days: 3 };
export const long = "a b ".repeat(6000);

const { z } = await load("zod");
export const parameters = z.strictObject({ city: z.string().max(12), days: z.number().int().min(1).max(9) });
export const report = z.object({
  city: z.enum(["Oslo", "Rome"]),
  days: z.number().int().positive().max(9),
  share: z.number().min(0).max(1),
  tags: z.array(z.enum(["rain", "sun"])).max(2),
});

export async function fails(asked, words) {
  await assert.rejects(asked, (error) => `${error.message} ${error.responseBody ?? ""}`.includes(words));
}

export async function check(cases) {
  const wrong = {};
  for (const [name, run] of Object.entries(cases)) {
    try {
      await run();
      wrong[name] = null;
    } catch (error) {
      wrong[name] = `${error?.stack ?? error} ${error?.responseBody ?? ""}`.slice(0, 1500);
    }
  }
  console.log(`\n${JSON.stringify(wrong)}`);
  process.exit(0);
}
