"""The byte-level BPE tokenizer of the embedded model."""

from __future__ import annotations

import re

from corpus import Corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

START = "<|endoftext|>"
WORD_WEIGHT = 250
# Everyday English words that are too rare in the documents to become tokens.
COMMON_WORDS = (
    "about after again air all also always and animal another any are around as ask at away back "
    "be because been before between both but by call can change child children city come could "
    "country day did different do does down each end enough even every eye face far few find "
    "first food for form from get girl give go good great group grow hand hard has have he head "
    "hear help her here high him his home house how if important into is it just keep know land "
    "large last later learn leave left let letter life light like line little live long look love "
    "made make man many may me mean men might money more most move much must my name near never "
    "new next night no not nothing now number of off often old on once one only or other our out "
    "over own page paper part people place plant play point put question quick read really right "
    "river room run said same saw say school sea second see seem sentence set she should show "
    "side small so some something sometimes soon sound spell start state still stop story study "
    "such sun take talk tell than that the their them then there these they thing think this "
    "thought three through time to together too took tree try turn two under until up us use very "
    "walk want war was watch water way we week well went were what when where which while white "
    "who why will with without woman women word work world would write year yes you young your "
    "Alice All And Are But Can Do Everybody Everyone For From Have He Her Here His How I If In It "
    "London Me My No Nobody Not Of On Our Paris She So Somebody That The Then There These They "
    "This Was We What When Where Which Who Why With Yes You Your banana brain brown computer "
    "crossed delicious didn doesn doctor dream earth eat fell fish fox ground hospital human "
    "jumped jumps king language laughed lazy machine meaning model morning mouse music president "
    "queen slept smiled street summer sweet teacher trophy suitcase weather window wine winter"
)


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Train on the documents, with everyday words counted often enough to become tokens.

    Parameters
    ----------
    corpus
        The training text.
    vocab_size
        Tokens altogether, with the 256 bytes and the start token.

    Returns
    -------
    tokenizers.Tokenizer
        Puts the start token in front of every text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = set(COMMON_WORDS.split())
    for story in corpus.stories:
        words.update(re.findall("[A-Za-z]+", story))
    weighted = [f" {word}" * WORD_WEIGHT for word in sorted(words)]
    tokenizer.train_from_iterator(corpus.docs + corpus.stories + weighted, trainer)
    start = tokenizer.token_to_id(START)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{START} $A",
                pair=f"{START} $A {START} $B",
                special_tokens=[(START, start)],
            ),
        ]
    )
    return tokenizer


def wrap(tokenizer: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    """Wrap the tokenizer for transformers, which saves and loads it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=START,
        pad_token=START,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
