// The AI SDK over @ai-sdk/openai (Responses) and @ai-sdk/anthropic (Messages): tools to the end, and reasoning, whole
// and streamed: node ai_sdk_apis.mjs URL MODEL
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateText, streamText, tool, jsonSchema, stepCountIs } = await load('ai');
const { createOpenAI } = await load('@ai-sdk/openai');
const { createAnthropic } = await load('@ai-sdk/anthropic');
const [url, name] = process.argv.slice(2);
const provider = { baseURL: `${url}/v1`, apiKey: 'none' };
const models = { responses: createOpenAI(provider).responses(name), messages: createAnthropic(provider)(name) };
const weather = tool({
  description: 'Rain of today',
  inputSchema: jsonSchema({
    type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false,
  }),
  execute: async ({ city }) => ({ Bern: '4 mm', Basel: '0 mm' })[city],
});
const questions = [['Rain in Bern?', 'Yes: 4 mm.'], ['Rain in Bern and Basel?', 'Only in Bern.']];

for (const [api, model] of Object.entries(models)) {
  for (const [prompt, answer] of questions) {
    const options = {
      model, prompt, tools: { weather }, stopWhen: stepCountIs(4), maxRetries: 0, maxOutputTokens: 500,
      providerOptions: { openai: { store: false } },
    };
    const whole = await generateText(options);
    assert.equal(whole.text.trim(), answer);
    const streamed = streamText(options);
    assert.equal((await streamed.text).trim(), answer);
    for (const steps of [whole.steps, await streamed.steps]) {
      assert.equal(steps.length, 2);
      assert.equal(steps[0].toolCalls.length, prompt.includes('Basel') ? 2 : 1);
    }
    console.log(api, prompt, whole.steps.map((step) => step.finishReason).join(' '));
  }
}
console.log('the AI SDK agrees');
