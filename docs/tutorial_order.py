"""The order of the tutorials."""

ORDER = [
    "plot_dog_and_cat",
    "plot_pool_beats_badminton",
    "plot_song_ideas_step_by_step",
    "plot_scores_and_attention",
    "plot_token_graphs",
    "plot_five_weight_functions",
    "plot_learning_queries_and_keys",
    "plot_cutting_an_induction_head",
    "plot_comparing_weight_functions",
    "plot_grouped_query_heads",
    "plot_gaussian_attention",
    "plot_head_map",
    "plot_rollout",
    "plot_attention_flow",
    "plot_contributions",
    "plot_value_zeroing",
    "plot_information_flow_routes",
    "plot_pagerank",
    "plot_spectrum",
    "plot_topology",
    "plot_reach",
    "plot_syntax",
    "plot_faithfulness",
    "plot_heads_of_a_corpus",
]
"""From the first call to the analyses, how far to trust them, and many texts."""
