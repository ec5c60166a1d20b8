// Vercel's `ai`: OpenAI's provider, which asks /v1/responses, the one for compatible servers, and Anthropic's.
import assert from "node:assert/strict";
import { ask, called, check, fails, free, greeting, load, long, parameters, report, scripted, told } from "./asking.mjs";

const { generateText, isStepCount, Output, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createAnthropic } = await load("@ai-sdk/anthropic");

const compatible = { name: "specrun", apiKey: "none", supportsStructuredOutputs: true };
const models = (baseURL) => [
  createOpenAI({ baseURL, apiKey: "none" })("small"),
  createOpenAICompatible({ ...compatible, baseURL })("small"),
  createAnthropic({ baseURL, apiKey: "none" })("small"),
];
const weather = tool({ description: "Tells it.", inputSchema: parameters, execute: async () => "rain" });
const asked = { prompt: ask, maxRetries: 0, maxOutputTokens: 600 };
const with_tools = { ...asked, tools: { weather }, stopWhen: (stepCountIs ?? isStepCount)(2) };
const output = Output.object({ schema: report });
const each = async (url, run) => {
  for (const model of models(url)) await run(model);
};

await check({
  hello: () =>
    each(scripted, async (model) => assert.equal((await generateText({ ...asked, model })).text, greeting)),
  stream: () => each(scripted, async (model) => assert.equal(await streamText({ ...asked, model }).text, greeting)),
  tool_streamed: () =>
    each(scripted, async (model) => {
      const result = streamText({ ...with_tools, model });
      assert.equal(await result.text, told);
      assert.deepEqual((await result.steps)[0].toolCalls[0].input, called);
    }),
  tool_forced: () =>
    each(free, async (model) => {
      const result = await generateText({ ...asked, model, tools: { weather }, toolChoice: "required" });
      parameters.parse(result.toolCalls[0].input);
    }),
  structured: () => each(free, async (model) => report.parse((await generateText({ ...asked, model, output })).output)),
  tools_and_format: () =>
    each(free, async (model) => {
      const result = await generateText({ ...with_tools, model, output });
      if (!result.toolCalls.length) report.parse(result.output);
    }),
  error: () =>
    each(scripted, (model) =>
      fails(() => generateText({ ...asked, model, prompt: long }), model.provider.includes("anthropic") ? "too long" : "maximum context"),
    ),
});
