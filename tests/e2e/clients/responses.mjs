// OpenAI's client for JavaScript at the Responses API, with tools to the end, whole, streamed and by its helper; with
// STORE at the end also conversations and the background that the server stores: node responses.mjs URL MODEL [STORE]
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(`${process.cwd()}/`);
const { OpenAI } = require('openai');
const [url, model, store] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const parameters = {
  type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false,
};
const tools = [{ type: 'function', name: 'weather', description: 'Rain of today', parameters, strict: true }];
const rain = ({ city }) => ({ Bern: '4 mm', Basel: '0 mm' })[city];
const questions = [['Rain in Bern?', 'Yes: 4 mm.'], ['Rain in Bern and Basel?', 'Only in Bern.']];

const ways = {
  whole: (body) => client.responses.create(body),
  streamed: async (body) => {
    let number = 0;
    let last;
    for await (const event of await client.responses.create({ ...body, stream: true })) {
      assert.equal(event.sequence_number, number++);
      last = event;
    }
    assert.equal(last.type, 'response.completed');
    return last.response;
  },
  helper: async (body) => {
    const kinds = [];
    const stream = client.responses.stream(body).on('event', (event) => kinds.push(event.type));
    const response = await stream.finalResponse();
    assert.equal(kinds[0], 'response.created');
    return response;
  },
};

const results = (calls) => calls.map((call) => ({
  type: 'function_call_output', call_id: call.call_id, output: rain(JSON.parse(call.arguments)),
}));
const textOf = (response) => response.output.filter((item) => item.type === 'message')
  .flatMap((item) => item.content).map((part) => part.text).join('');

for (const [name, ask] of Object.entries(ways)) {
  for (const [question, answer] of questions) {
    for (const isStored of store ? [false, true] : [false]) {
      let body = { model, tools, input: [{ role: 'user', content: question }] };
      if (isStored) body.store = true;
      let numCalls = 0;
      for (;;) {
        const response = await ask(body);
        assert.equal(response.status, 'completed');
        assert.equal(response.store, Boolean(store));
        const calls = response.output.filter((item) => item.type === 'function_call');
        numCalls += calls.length;
        if (calls.length === 0) {
          assert.equal(textOf(response).trim(), answer);
          break;
        }
        body = isStored
          ? { ...body, input: results(calls), previous_response_id: response.id }
          : { ...body, input: [...body.input, ...response.output, ...results(calls)] };
      }
      assert.equal(numCalls, question.includes('Basel') ? 2 : 1);
    }
    console.log(name, question, answer);
  }
}

if (store) {
  let response = await client.responses.create({ model, tools, input: 'Rain in Bern?', background: true });
  assert.equal(response.status, 'queued');
  while (['queued', 'in_progress'].includes(response.status)) {
    await new Promise((resolve) => { setTimeout(resolve, 20); });
    response = await client.responses.retrieve(response.id);
  }
  assert.equal(response.status, 'completed');
  assert.equal(response.output.at(-1).name, 'weather');
  const asked = { model, tools, input: 'Rain in Bern?', background: true, stream: true };
  const kinds = [];
  let id;
  for await (const event of await client.responses.create(asked)) {
    kinds.push(event.type);
    id ??= event.response?.id;
  }
  const again = [];
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 1 })) {
    again.push(event.type);
  }
  assert.deepEqual(again, kinds.slice(2));
  const items = [];
  for await (const item of client.responses.inputItems.list(id)) items.push(item);
  assert.equal(items[0].content[0].text, 'Rain in Bern?');
  await assert.rejects(client.responses.cancel(id), OpenAI.BadRequestError);
  await client.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id), OpenAI.NotFoundError);
  console.log('stored', kinds.length);
}
console.log('openai for JavaScript agrees');
