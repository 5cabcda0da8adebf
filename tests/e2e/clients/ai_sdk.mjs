// The AI SDK over @ai-sdk/openai-compatible: tools to the end, and reasoning, whole and streamed: node ai_sdk.mjs URL MODEL
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateText, streamText, tool, jsonSchema, stepCountIs } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const [url, name] = process.argv.slice(2);
const model = createOpenAICompatible({ name: 'halyard', baseURL: `${url}/v1`, apiKey: 'none' })(name);
const weather = tool({
  description: 'Rain of today',
  inputSchema: jsonSchema({ type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }),
  execute: async ({ city }) => ({ Bern: '4 mm', Basel: '0 mm' })[city],
});
const questions = [['Rain in Bern?', 'Yes: 4 mm.'], ['Rain in Bern and Basel?', 'Only in Bern.']];

for (const [prompt, answer] of questions) {
  const options = { model, prompt, tools: { weather }, stopWhen: stepCountIs(4), maxRetries: 0 };
  const whole = await generateText(options);
  assert.equal(whole.text.trim(), answer);
  const streamed = streamText(options);
  assert.equal((await streamed.text).trim(), answer);
  for (const steps of [whole.steps, await streamed.steps]) {
    assert.equal(steps.length, 2);
    assert.equal(steps[0].toolCalls.length, prompt.includes('Basel') ? 2 : 1);
    const reasoning = steps[0].reasoningText ?? '';
    assert.equal(reasoning.trim(), prompt.includes('Basel') ? '' : 'I must look.');
  }
  console.log(prompt, whole.steps.map((step) => step.finishReason).join(' '));
}
console.log('the AI SDK agrees');
