"""Tests of the installed package: `python -m unittest runtime/python/tests/test_halyard.py` from the repository's root,
in an environment that has the wheel (server/packaging/try-wheel makes one).

The model is a tiny random Llama; its goldens were made by Hugging Face transformers (tests/fixtures/models).
HALYARD_TEST_MODEL, where it is set, is the demo model, whose longer runs Ctrl-C interrupts."""

import asyncio
import contextlib
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import unittest

import halyard
from halyard import LLM, AsyncLLM, LoRARequest, RequestOutputKind, SamplingParams, StructuredOutputsParams

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "tests" / "fixtures" / "models" / "llama"
GOLDENS = json.loads((MODEL / "goldens.json").read_text())
# As the goldens: products in f32, keys and values too.
EXACT = {
    "platform": "cpu",
    "dtype": "float32",
    "kv_cache_dtype": "float32",
    "allow_quantized_act": False,
    "kv_cache_memory_bytes": 16 << 20,
}
GREEDY = {"temperature": 0.0, "max_tokens": GOLDENS["max_new_tokens"]}
# Adapters, with goldens of PEFT over the same model.
ADAPTERS = {name: MODEL.parent / "llama-lora" / name for name in ("rank16", "rslora8")}
WITH_LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16}
# What f32 sums in another order change; tests/device has the same bound.
LOGPROB_TOLERANCE = 2e-3


def prompt_of(case):
    """A golden's prompt: its text, or its token ids where they came from none."""
    return case["prompt_ids"] if case["prompt_text"] is None else case["prompt_text"]


def adapter_cases(name):
    """An adapter's goldens without chats."""
    cases = json.loads((ADAPTERS[name] / "goldens.json").read_text())["cases"]
    return [case for case in cases if case["messages"] is None]


def in_a_child(attempt):
    """What `attempt` returns in a fork of this process, as JSON; the child ends without cleaning up."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(attempt()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    return json.loads(said), os.waitpid(child, 0)[1]


def names_of(threads):
    """The names in a process's folder of threads, which may end meanwhile."""
    names = set()
    for thread in threads.glob("*/comm"):
        with contextlib.suppress(OSError):
            names.add(thread.read_text().strip())
    return names


class Offline(unittest.TestCase):
    """`LLM`."""

    llm: LLM

    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(MODEL, **EXACT)

    @classmethod
    def tearDownClass(cls):
        cls.llm.shutdown()

    def test_tokens_and_logprobs_are_those_of_hugging_face(self):
        params = SamplingParams(**GREEDY, logprobs=0, prompt_logprobs=0)
        texts = [case for case in GOLDENS["cases"] if case["messages"] is None]
        chats = [case for case in GOLDENS["cases"] if case["messages"] is not None]
        self.assertTrue(texts and chats)
        outputs = self.llm.generate([prompt_of(case) for case in texts], params, use_tqdm=False)
        outputs += self.llm.chat([case["messages"] for case in chats], params, use_tqdm=False)
        for case, output in zip(texts + chats, outputs, strict=True):
            hf, sample = case["hf_fp32"], output.outputs[0]
            self.assertEqual(output.prompt_token_ids, case["prompt_ids"], case["name"])
            self.assertEqual(output.prompt, case["prompt_text"])
            self.assertEqual(sample.token_ids, hf["ids"], case["name"])
            found = [position[token].logprob for position, token in zip(sample.logprobs, sample.token_ids, strict=True)]
            for mine, theirs in zip(found, hf["logprobs"], strict=True):
                self.assertAlmostEqual(mine, theirs, delta=LOGPROB_TOLERANCE)
            self.assertAlmostEqual(sample.cumulative_logprob, sum(found), places=4)
            self.assertIsNone(output.prompt_logprobs[0])
            for position, token, theirs in zip(
                output.prompt_logprobs[1:], case["prompt_ids"][1:], hf["prompt_logprobs"][1:], strict=True
            ):
                self.assertAlmostEqual(position[token].logprob, theirs, delta=LOGPROB_TOLERANCE)
            self.assertTrue(output.finished and sample.finished())
            self.assertEqual(sample.finish_reason, "stop" if hf["ids"][-1] == GOLDENS["eos_token_id"] else "length")

    def test_outputs_have_vllms_fields_and_can_be_pickled(self):
        output = self.llm.generate("The river", SamplingParams(**GREEDY, logprobs=2), use_tqdm=False)[0]
        fields = {"request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished", "metrics"}
        fields |= {"lora_request", "num_cached_tokens"}
        self.assertEqual(set(vars(output)), fields)
        sample = {"index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason"}
        self.assertEqual(set(vars(output.outputs[0])), sample | {"lora_request"})
        first = output.outputs[0].logprobs[0]
        self.assertEqual({score.rank for score in first.values()} >= {1, 2}, True, first)
        self.assertEqual(pickle.loads(pickle.dumps(output)), output)

    def test_samples_are_seeded_and_differ(self):
        params = SamplingParams(n=3, seed=7, max_tokens=12)
        one, two = (self.llm.generate([297, 368], params, use_tqdm=False)[0].outputs for _ in range(2))
        self.assertEqual([sample.token_ids for sample in one], [sample.token_ids for sample in two])
        self.assertEqual([sample.index for sample in one], [0, 1, 2])
        self.assertEqual(len({tuple(sample.token_ids) for sample in one}), 3)

    def test_stops_say_what_stopped(self):
        whole = self.llm.generate("The river", SamplingParams(**GREEDY), use_tqdm=False)[0].outputs[0]
        by_text = SamplingParams(**GREEDY, stop="um")
        sample = self.llm.generate("The river", by_text, use_tqdm=False)[0].outputs[0]
        self.assertEqual((sample.finish_reason, sample.stop_reason), ("stop", "um"))
        self.assertEqual(sample.text, whole.text.split("um")[0])
        by_token = SamplingParams(**GREEDY, stop_token_ids=[whole.token_ids[3]])
        sample = self.llm.generate("The river", by_token, use_tqdm=False)[0].outputs[0]
        self.assertEqual((sample.finish_reason, sample.stop_reason), ("stop", whole.token_ids[3]))

    def test_structured_outputs_bias_and_bad_words_bind(self):
        choice = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
        text = self.llm.generate("The river", choice, use_tqdm=False)[0].outputs[0].text
        self.assertIn(text, {"yes", "no"})
        banned = SamplingParams(**GREEDY, bad_words=["um"])
        self.assertNotIn("um", self.llm.generate("The river", banned, use_tqdm=False)[0].outputs[0].text)
        biased = SamplingParams(temperature=0, max_tokens=4, logit_bias={40: 100.0})
        sample = self.llm.generate("The river", biased, use_tqdm=False)[0].outputs[0]
        self.assertEqual(sample.token_ids, [40] * 4)

    def test_more_prompts_than_may_wait_are_all_answered_in_order(self):
        params = SamplingParams(temperature=0, max_tokens=2)
        prompts = [[297, 3 + i % 200] for i in range(5000)]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        self.assertEqual([output.prompt_token_ids for output in outputs], prompts)
        self.assertEqual(outputs[1].outputs[0].token_ids, outputs[201].outputs[0].token_ids)

    def test_other_threads_run_while_the_engine_does(self):
        params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
        thread = threading.Thread(target=self.llm.generate, args=([[297, 368]] * 500, params, False))
        turns = 0
        thread.start()
        while thread.is_alive():
            turns += 1
        # With the lock held this thread would get a turn each 100 ms.
        self.assertGreater(turns, 10_000)

    def test_bad_values_are_named_and_nothing_runs_on(self):
        for params, words in [
            (SamplingParams(temperature=-1.0), "temperature is -1"),
            (SamplingParams(top_p=0.0), "top_p is 0"),
            (SamplingParams(logit_bias={99999: 1.0}), "99999"),
            (SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")), "regex"),
        ]:
            with self.assertRaisesRegex(ValueError, words):
                self.llm.generate("The river", params, use_tqdm=False)
        for prompt, error, words in [
            ([], ValueError, "prompt is empty"),
            ([7, 99999], ValueError, "99999 at position 1"),
            ([7] * 100_000, ValueError, "100000 tokens"),
            ({"prompt": "a", "multi_modal_data": {}}, ValueError, "multi_modal_data"),
            (7, TypeError, "int"),
        ]:
            with self.assertRaisesRegex(error, words):
                self.llm.generate([prompt] if isinstance(prompt, list) else prompt, use_tqdm=False)
        with self.assertRaisesRegex(ValueError, "2 values for 1 prompt"):
            self.llm.generate("a", [SamplingParams()] * 2)
        with self.assertRaisesRegex(NotImplementedError, "embeddings"):
            self.llm.embed("a")

    def test_a_fork_is_told_what_to_do_and_ends(self):
        def attempts():
            words = []
            for attempt in (lambda: self.llm.generate("a", use_tqdm=False), lambda: LLM(MODEL, **EXACT)):
                try:
                    attempt()
                    words.append("no error")
                except RuntimeError as error:
                    words.append(str(error))
            type(self).llm = None
            return words

        words, status = in_a_child(attempts)
        self.assertEqual((len(words), status), (2, 0))
        for text in words:
            self.assertRegex(text, r"fork.*spawn")
        self.assertTrue(self.llm.generate("a", use_tqdm=False)[0].finished, "the parent goes on")


class Starts(unittest.TestCase):
    """Starting and ending."""

    def test_bad_keywords_are_named(self):
        for keywords, error, words in [
            ({"platfrom": "cpu"}, TypeError, "platfrom"),
            ({"dtype": "int3"}, ValueError, "int3"),
            ({"platform": "abacus"}, RuntimeError, "abacus"),
            ({"pipeline_parallel_size": 2}, ValueError, "pipeline_parallel_size=2"),
            ({"tensor_parallel_size": 2, "platform": "cpu"}, ValueError, "tensor_parallel_size: 2"),
            ({"gpu_memory_utilization": 7}, ValueError, "gpu_memory_utilization"),
            ({"platform_options": {"threads": "many"}, "platform": "cpu"}, RuntimeError, "threads"),
        ]:
            with self.assertRaisesRegex(error, words):
                LLM(MODEL, **keywords)

    def test_a_model_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(FileNotFoundError, "no/such/folder"):
            LLM("./no/such/folder")
        with self.assertRaisesRegex(ImportError, r"halyard\[hub\]"):
            LLM("some-org/some-model")

    def test_an_engine_that_has_ended_says_so(self):
        with LLM(MODEL, **EXACT) as llm:
            self.assertTrue(llm.generate("a", use_tqdm=False)[0].finished)
        with self.assertRaises(halyard.EngineDeadError):
            llm.generate("a", use_tqdm=False)

    def test_an_engine_sleeps_wakes_and_gets_other_weights(self):
        case = next(case for case in GOLDENS["cases"] if case["messages"] is None)

        def tokens(llm):
            output = llm.generate(prompt_of(case), SamplingParams(**GREEDY), use_tqdm=False)[0]
            return output.outputs[0].token_ids

        with LLM(MODEL, enable_sleep_mode=True, **EXACT) as llm:
            for level in (1, 2):
                llm.sleep(level=level)
                with self.assertRaisesRegex(RuntimeError, "wake_up"):
                    tokens(llm)
                with self.assertRaisesRegex(RuntimeError, "weights"):
                    llm.wake_up(tags=["kv_cache"])
                llm.wake_up(tags=["weights"])
                llm.wake_up(tags=["kv_cache"])
                self.assertEqual(tokens(llm), case["hf_fp32"]["ids"])
            self.assertTrue(llm.reset_prefix_cache())
            self.assertEqual(llm.collective_rpc("reload_weights", kwargs={"weights_path": str(MODEL)}), [None])
            with self.assertRaisesRegex(ValueError, "Qwen3ForCausalLM"):
                llm.collective_rpc("reload_weights", kwargs={"weights_path": str(MODEL.parent / "qwen3")})
            with self.assertRaisesRegex(NotImplementedError, "save_model"):
                llm.collective_rpc("save_model")
            for wrong in ({"level": 3}, {"mode": "later"}):
                with self.assertRaisesRegex(ValueError, "must be|is not"):
                    llm.sleep(**wrong)
            self.assertEqual(tokens(llm), case["hf_fp32"]["ids"])
        with LLM(MODEL, **EXACT) as llm, self.assertRaisesRegex(RuntimeError, "enable"):
            llm.sleep()

    def test_ctrl_c_ends_a_batch_and_leaves_the_engine(self):
        model = os.environ.get("HALYARD_TEST_MODEL") or str(MODEL)
        code = f"""
import signal, sys
from halyard import LLM, SamplingParams
# A shell's background job is started with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
llm = LLM({model!r}, platform="cpu", kv_cache_memory_bytes=256 << 20)
params = SamplingParams(max_tokens=None, ignore_eos=True)
try:
    # The bar is asked for when all requests are submitted, seconds before their end.
    llm.generate([[7, 8, 9]] * 4000, params, use_tqdm=lambda **_: print("submitted", flush=True))
    print("it ran to its end")
except KeyboardInterrupt:
    print(len(llm.generate([7], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids))
"""
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "submitted\n")
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.communicate(timeout=600)[0], "3\n")
        self.assertEqual(child.returncode, 0)

    def test_ctrl_c_while_a_model_loads_raises_at_once(self):
        code = f"""
import signal
from halyard import LLM, SamplingParams
signal.signal(signal.SIGINT, signal.default_int_handler)
common = dict(platform="cpu", kv_cache_memory_bytes=1 << 30, max_model_len=64)
try:
    # A thousand layers of nothing: seconds of work.
    LLM({str(MODEL)!r}, load_format="dummy", hf_overrides={{"num_hidden_layers": 1000}}, **common)
    print("it was loaded")
except KeyboardInterrupt:
    print("interrupted")
with LLM({str(MODEL)!r}, **common) as llm:
    print(len(llm.generate([7], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids))
"""
        for _ in range(10):
            child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            # The thread that loads has a name.
            threads = pathlib.Path(f"/proc/{child.pid}/task")
            while child.poll() is None and "halyard-load" not in names_of(threads):
                pass
            child.send_signal(signal.SIGINT)
            said = child.communicate(timeout=600)[0]
            # On a busy machine it may end before the signal comes.
            if not said.startswith("it was loaded"):
                break
        self.assertEqual((said, child.returncode), ("interrupted\n3\n", 0))

    def test_adapters_answer_as_peft(self):
        with LLM(MODEL, **WITH_LORA, **EXACT) as llm:
            plain = [case for case in GOLDENS["cases"] if case["messages"] is None]
            asked = [(case, None) for case in plain]
            for number, (name, folder) in enumerate(ADAPTERS.items(), start=1):
                request = LoRARequest(name, number, str(folder))
                asked += [(case, request) for case in adapter_cases(name)]
            prompts = [prompt_of(case) for case, _ in asked]
            requests = [request for _, request in asked]
            outputs = llm.generate(prompts, SamplingParams(**GREEDY), use_tqdm=False, lora_request=requests)
            for (case, request), output in zip(asked, outputs, strict=True):
                self.assertEqual(output.outputs[0].token_ids, case["hf_fp32"]["ids"], (case["name"], request))
                self.assertEqual((output.lora_request, output.outputs[0].lora_request), (request, request))
            with self.assertRaisesRegex((ValueError, FileNotFoundError), "no/such/adapter"):
                llm.generate("a", lora_request=LoRARequest("none", 9, "./no/such/adapter"), use_tqdm=False)
            with self.assertRaisesRegex(ValueError, "lora_request: 1 values for 2"):
                llm.generate(["a", "b"], lora_request=[requests[-1]], use_tqdm=False)
        with LLM(MODEL, **EXACT) as llm, self.assertRaisesRegex(ValueError, "enable_lora|enable-lora"):
            llm.generate("a", lora_request=requests[-1], use_tqdm=False)


class Streaming(unittest.IsolatedAsyncioTestCase):
    """`AsyncLLM`."""

    @classmethod
    def setUpClass(cls):
        cls.engine = AsyncLLM.from_engine_args(halyard.AsyncEngineArgs(model=str(MODEL), **EXACT))

    @classmethod
    def tearDownClass(cls):
        cls.engine.shutdown()

    async def collect(self, name, prompt, params):
        return [output async for output in self.engine.generate(prompt, params, name)]

    async def test_streams_at_once_are_those_of_hugging_face(self):
        texts = [case for case in GOLDENS["cases"] if case["messages"] is None] * 4
        runs = (self.collect(f"r{i}", prompt_of(case), SamplingParams(**GREEDY)) for i, case in enumerate(texts))
        for case, outputs in zip(texts, await asyncio.gather(*runs), strict=True):
            self.assertEqual(outputs[-1].outputs[0].token_ids, case["hf_fp32"]["ids"])
            self.assertEqual([output.finished for output in outputs], [False] * (len(outputs) - 1) + [True])

    async def test_a_chat_streams_what_hugging_face_answers(self):
        chats = [case for case in GOLDENS["cases"] if case["messages"] is not None]
        self.assertTrue(chats)
        for case in chats:
            stream = self.engine.chat(case["messages"], SamplingParams(**GREEDY), case["name"])
            outputs = [output async for output in stream]
            self.assertEqual(outputs[-1].prompt_token_ids, case["prompt_ids"], case["name"])
            self.assertEqual(outputs[-1].outputs[0].token_ids, case["hf_fp32"]["ids"], case["name"])
            self.assertEqual([output.finished for output in outputs], [False] * (len(outputs) - 1) + [True])

    async def test_an_answer_comes_in_pieces(self):
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        for attempt in range(50):
            # An output has all that came since the last one, on a busy machine the whole answer.
            if len(await self.collect(f"pieces {attempt}", "The river", params)) > 1:
                return
        self.fail("50 answers of 200 tokens came whole")

    async def test_requests_of_one_adapter_at_once_share_it(self):
        engine = AsyncLLM(MODEL, **WITH_LORA, **EXACT)
        request = LoRARequest("rank16", 1, str(ADAPTERS["rank16"]))

        async def ask(case):
            stream = engine.generate(prompt_of(case), SamplingParams(**GREEDY), case["name"], lora_request=request)
            return [output async for output in stream][-1]

        def bring(new, start):
            start.wait()
            engine._engine.ensure_lora(new, ADAPTERS["rank16"])

        try:
            cases = adapter_cases("rank16")
            for case, output in zip(cases, await asyncio.gather(*map(ask, cases)), strict=True):
                self.assertEqual(output.outputs[0].token_ids, case["hf_fp32"]["ids"], case["name"])
                self.assertEqual(output.lora_request, request)
            # Who comes while another adds it waits, and adds nothing.
            for at in range(50):
                start = threading.Barrier(4)
                await asyncio.gather(*(asyncio.to_thread(bring, f"new {at}", start) for _ in range(4)))
        finally:
            engine.shutdown()

    async def test_a_fork_of_an_engine_on_a_loop_is_told_what_to_do(self):
        await self.collect("before", "a", SamplingParams(max_tokens=1))

        def attempt():
            words = []
            # Says nothing, and leaves the parent's loop alone.
            self.engine.shutdown()

            async def ask():
                async for _ in self.engine.generate("a", SamplingParams(max_tokens=1), "forked"):
                    words.append("an output")

            # The parent's loop is this thread's still.
            asyncio.events._set_running_loop(None)
            for refused in (lambda: asyncio.run(ask()), lambda: AsyncLLM(MODEL, **EXACT)):
                try:
                    refused()
                    words.append("no error")
                except RuntimeError as error:
                    words.append(str(error))
            type(self).engine = None
            return words

        words, status = in_a_child(attempt)
        self.assertEqual((len(words), status), (2, 0))
        for text in words:
            self.assertRegex(text, r"fork.*spawn")
        self.assertTrue((await self.collect("after", "a", SamplingParams(max_tokens=1)))[-1].finished)

    async def test_kinds_of_output_add_up(self):
        kinds = {}
        for kind in RequestOutputKind:
            params = SamplingParams(**GREEDY, n=2, seed=1, output_kind=kind)
            kinds[kind] = await self.collect(kind.name, "The river", params)
        whole = {sample.index: sample.text for sample in kinds[RequestOutputKind.FINAL_ONLY][0].outputs}
        self.assertEqual(len(kinds[RequestOutputKind.FINAL_ONLY]), 1)
        last = {sample.index: sample.text for sample in kinds[RequestOutputKind.CUMULATIVE][-1].outputs}
        pieces = {0: "", 1: ""}
        for output in kinds[RequestOutputKind.DELTA]:
            for sample in output.outputs:
                pieces[sample.index] += sample.text
        self.assertTrue(whole == last == pieces and whole[0], (whole, last, pieces))

    async def test_leaving_early_and_abort_free_the_engine(self):
        endless = SamplingParams(max_tokens=None, ignore_eos=True)
        async for _ in self.engine.generate("The river", endless, "left"):
            break
        outputs = []
        async for output in self.engine.generate("The river", endless, "aborted"):
            outputs.append(output)
            await self.engine.abort("aborted")
        self.assertTrue(outputs[-1].finished)
        await self.collect("left", "The river", SamplingParams(max_tokens=1))

    async def test_requests_are_held_over_a_pause_and_a_sleep(self):
        engine = AsyncLLM.from_engine_args(
            halyard.AsyncEngineArgs(model=str(MODEL), enable_sleep_mode=True, **EXACT)
        )
        params = SamplingParams(**GREEDY)

        async def ask(name):
            return [output async for output in engine.generate("The river", params, name)][-1].outputs[0].token_ids

        try:
            expected = await ask("before")
            await engine.pause_generation(mode="keep")
            held = asyncio.create_task(ask("held"))
            self.assertTrue(await engine.is_paused())
            await engine.sleep(mode="keep")
            self.assertTrue(await engine.is_sleeping())
            with self.assertRaisesRegex(RuntimeError, "sleeps"):
                await engine.resume_generation()
            await asyncio.sleep(0.1)
            self.assertFalse(held.done())
            await engine.wake_up()
            self.assertFalse(await engine.is_sleeping() or await engine.is_paused())
            self.assertEqual(await held, expected)
            self.assertTrue(await engine.reset_prefix_cache())
            await engine.collective_rpc("reload_weights", kwargs={"weights_path": str(MODEL)})
            self.assertEqual(await ask("after"), expected)
        finally:
            engine.shutdown()

    async def test_errors_and_names(self):
        with self.assertRaisesRegex(ValueError, "temperature"):
            await self.collect("bad", "a", SamplingParams(temperature=-1))
        running = self.engine.generate("a", SamplingParams(max_tokens=50, ignore_eos=True), "same")
        await anext(running)
        with self.assertRaisesRegex(ValueError, "'same' is running"):
            await self.collect("same", "a", SamplingParams())
        await running.aclose()
        await self.engine.check_health()


if __name__ == "__main__":
    unittest.main()
