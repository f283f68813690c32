"""A study of how far rankings of edges, tokens and heads agree with exact effects.

python -m benchmarks.faithfulness --texts 5 --models embedded
python -m benchmarks.faithfulness --json results.json --markdown docs/faithfulness.md

Each ranking that gattn offers is compared with what cutting does to the answer, over texts of
several kinds, in trained models and in the same models with random weights. $GATTN_MINILM names the
folder of all-MiniLM-L6-v2; without it, these models are left out.
"""
