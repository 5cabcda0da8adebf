// Anthropic's client for JavaScript in a conversation with tools, to its end, whole, streamed and by its helper:
// node messages.mjs URL MODEL
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(`${process.cwd()}/`);
const { Anthropic } = require('@anthropic-ai/sdk');
const [url, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
const tools = [{
  name: 'weather', description: 'Rain of today',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}];
const rain = ({ city }) => ({ Bern: '4 mm', Basel: '0 mm' })[city];
const questions = [['Rain in Bern?', 'Yes: 4 mm.'], ['Rain in Bern and Basel?', 'Only in Bern.']];

const ways = {
  whole: (body) => client.messages.create(body),
  streamed: async (body) => {
    const kinds = [];
    let message;
    const partial = [];
    for await (const event of await client.messages.create({ ...body, stream: true })) {
      kinds.push(event.type);
      if (event.type === 'message_start') message = event.message;
      if (event.type === 'content_block_start') message.content.push(event.content_block);
      if (event.type === 'content_block_delta') {
        const block = message.content[event.index];
        const { delta } = event;
        if (delta.type === 'text_delta') block.text += delta.text;
        if (delta.type === 'thinking_delta') block.thinking += delta.thinking;
        if (delta.type === 'signature_delta') block.signature = delta.signature;
        if (delta.type === 'input_json_delta') partial[event.index] = (partial[event.index] ?? '') + delta.partial_json;
      }
      if (event.type === 'content_block_stop' && partial[event.index] !== undefined) {
        message.content[event.index].input = JSON.parse(partial[event.index]);
      }
      if (event.type === 'message_delta') message.stop_reason = event.delta.stop_reason;
    }
    assert.equal(kinds.at(-1), 'message_stop');
    return message;
  },
  helper: (body) => client.messages.stream(body).finalMessage(),
};

for (const [name, ask] of Object.entries(ways)) {
  for (const [question, answer] of questions) {
    const messages = [{ role: 'user', content: question }];
    const thoughts = [];
    for (;;) {
      const message = await ask({ model, max_tokens: 500, tools, messages });
      thoughts.push(...message.content.filter((block) => block.type === 'thinking').map((block) => block.thinking));
      const calls = message.content.filter((block) => block.type === 'tool_use');
      assert.equal(message.stop_reason, calls.length > 0 ? 'tool_use' : 'end_turn');
      if (calls.length === 0) {
        const text = message.content.filter((block) => block.type === 'text').map((block) => block.text).join('');
        assert.equal(text.trim(), answer);
        break;
      }
      const results = calls.map((call) => ({ type: 'tool_result', tool_use_id: call.id, content: rain(call.input) }));
      messages.push({ role: 'assistant', content: message.content }, { role: 'user', content: results });
    }
    assert.deepEqual(thoughts, question.includes('Basel') ? [] : ['\nI must look.\n', '\nIt rains.\n']);
    console.log(name, question, messages.length);
  }
}

const count = await client.messages.countTokens({ model, tools, messages: [{ role: 'user', content: 'Rain in Bern?' }] });
assert.ok(count.input_tokens > 10);
await assert.rejects(
  client.messages.create({ model: 'other', max_tokens: 5, messages: [{ role: 'user', content: 'a' }] }),
  Anthropic.NotFoundError,
);
console.log('anthropic for JavaScript agrees');
