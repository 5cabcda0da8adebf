// OpenAI's client for JavaScript in a chat with tools, to its end, whole and streamed: node chat_tools.mjs URL MODEL
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(`${process.cwd()}/`);
const { OpenAI } = require('openai');
const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const weather = { name: 'weather', description: 'Rain of today', parameters };
const rain = ({ city }) => ({ Bern: '4 mm', Basel: '0 mm' })[city];
const questions = [['Rain in Bern?', 'Yes: 4 mm.'], ['Rain in Bern and Basel?', 'Only in Bern.']];

for (const [question, answer] of questions) {
  for (const stream of [false, true]) {
    const tools = [{ type: 'function', function: { ...weather, function: rain, parse: JSON.parse } }];
    const messages = [{ role: 'user', content: question }];
    const runner = client.chat.completions.runTools({ model, messages, tools, stream });
    assert.equal((await runner.finalContent()).trim(), answer);
    const roles = runner.messages.map((message) => message.role);
    assert.equal(roles.filter((role) => role === 'tool').length, question.includes('Basel') ? 2 : 1);
    console.log(question, stream, roles.join(' '));
  }
}
const stream = client.chat.completions.stream({
  model, messages: [{ role: 'user', content: 'Rain in Bern?' }], tools: [{ type: 'function', function: weather }],
});
const { choices: [choice] } = await stream.finalChatCompletion();
assert.equal(choice.finish_reason, 'tool_calls');
assert.deepEqual(JSON.parse(choice.message.tool_calls[0].function.arguments), { city: 'Bern' });
console.log('openai for JavaScript agrees');
