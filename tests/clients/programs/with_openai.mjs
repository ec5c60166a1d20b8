import assert from "node:assert/strict";
import { ask, called, check, fails, free, greeting, load, long, parameters, report, scripted } from "./asking.mjs";

const { default: OpenAI } = await load("openai");
const { zodResponseFormat, zodTextFormat } = await load("openai/helpers/zod");
const { z } = await load("zod");
const [talker, writer] = [scripted, free].map((baseURL) => new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 }));
const asked = { model: "small", messages: [{ role: "user", content: ask }] };
const declared = { name: "weather", parameters: z.toJSONSchema(parameters), strict: true };
const tools = [{ type: "function", function: declared }];
const one = { tools, parallel_tool_calls: false }; // the model would not end by itself
const flat = [{ type: "function", ...declared }];

await check({
  async hello() {
    assert.equal((await talker.chat.completions.create(asked)).choices[0].message.content, greeting);
    assert.equal((await talker.responses.create({ model: "small", input: ask })).output_text, greeting);
  },
  async stream() {
    assert.equal(await talker.chat.completions.stream(asked).finalContent(), greeting);
    const final = await talker.responses.stream({ model: "small", input: ask }).finalResponse();
    assert.equal(final.output_text, greeting);
  },
  async tool_streamed() {
    const call = await talker.chat.completions.stream({ ...asked, tools }).finalFunctionToolCall();
    assert.deepEqual(JSON.parse(call.arguments), called);
    const final = await talker.responses.stream({ model: "small", input: ask, tools: flat }).finalResponse();
    assert.deepEqual(JSON.parse(final.output.at(-1).arguments), called);
  },
  async tool_forced() {
    const answer = await writer.chat.completions.create({ ...asked, tools, tool_choice: "required" });
    parameters.parse(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments));
    const choice = { type: "function", name: "weather" };
    const { output } = await writer.responses.create({ model: "small", input: ask, tools: flat, tool_choice: choice });
    parameters.parse(JSON.parse(output[0].arguments));
  },
  async structured() {
    const format = zodResponseFormat(report, "report");
    const answer = await writer.chat.completions.parse({ ...asked, response_format: format });
    assert.ok(answer.choices[0].message.parsed);
    const text = { format: zodTextFormat(report, "report") };
    assert.ok((await writer.responses.parse({ model: "small", input: ask, text })).output_parsed);
  },
  async tools_and_format() {
    const format = zodResponseFormat(report, "report");
    const { message } = (await writer.chat.completions.parse({ ...asked, ...one, response_format: format })).choices[0];
    assert.ok(message.parsed || message.tool_calls.length);
  },
  async error() {
    const messages = [{ role: "user", content: long }];
    await fails(() => talker.chat.completions.create({ ...asked, messages }), "maximum context length");
  },
});
