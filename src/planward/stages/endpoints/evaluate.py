"""Stage `endpoints-evaluate`: have every test problem completed by a hosted or served model, and judge."""

from __future__ import annotations

from planward.core import paths
from planward.core.files import write_json, write_jsonl
from planward.core.model_folders import check_model_folder
from planward.core.prompts import encode_prompt
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.params import AccessConfig, Params, ParamsError
from planward.stages.evaluate import build_test_prompts


def run(params: Params, name: str) -> None:
    """Write predictions/NAME-0.jsonl and NAME-0.json, and append to endpoints/NAME.jsonl, the stored answers.

    Prompts and worked examples are those of all models; tokens are counted with the tokenizer of `model.path`.

    Raises:
        ParamsError: `endpoints.run` does not name the endpoint.
        BackendError, EndpointError: see `endpoints.client.complete`.
    """
    endpoints = params.endpoints
    if name not in endpoints.run:
        raise ParamsError(f"endpoints.run: does not name {name}; it names: {', '.join(endpoints.run) or 'none'}")
    check_model_folder(params.model.path)
    from transformers import AutoTokenizer

    from planward.endpoints.answers import AnswerFile
    from planward.endpoints.client import complete
    from planward.endpoints.requests import build_request
    from planward.evaluation.scoring import JudgedCompletion, build_predictions, judge_answers

    run, task, results = Run(name, 0, 0), load_task(params), paths.results(params.task)
    tokenizer = AutoTokenizer.from_pretrained(params.model.path, trust_remote_code=False)
    prompts = build_test_prompts(task, tokenizer, params.evaluate.shots, params)
    options, limit = params.prompt.chat_template_options, params.prompt.max_completion_tokens
    token_ids = [tuple(encode_prompt(tokenizer, prompt.prompt, options)) for prompt in prompts]
    requests = [
        build_request(endpoints.models[name], prompt.prompt, len(ids), limit)
        for ids, prompt in zip(token_ids, prompts, strict=True)
    ]
    digests = [request.digest for request in requests]  # token ids do not tell prompts apart: unknown words share one
    with AnswerFile(results.root / "endpoints" / f"{name}.jsonl") as file:
        complete(name, endpoints.access.get(name, AccessConfig()), requests, file)
        answers = {digest: file[digest] for digest in digests}
    completions = [answers[digest].completion for digest in digests]
    verdicts = judge_answers(task, [(p.problem, text) for p, text in zip(prompts, completions, strict=True)])
    judged_completions = [
        JudgedCompletion(prompt, list(ids), completion, verdict)
        for prompt, ids, completion, verdict in zip(prompts, token_ids, completions, verdicts, strict=True)
    ]
    rows, metrics = build_predictions(judged_completions, tokenizer, run, params.seed)
    write_jsonl(results.answers(run), (row.model_dump() for row in rows))
    metrics |= {
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers.values()),
        "completion_tokens": sum(answer.completion_tokens for answer in answers.values()),
        "completions_cut_off": sum(answer.finish_reason == "length" for answer in answers.values()),
    }
    write_json(results.answers(run).with_suffix(".json"), {"run": run.as_dict(params.task)} | metrics)
