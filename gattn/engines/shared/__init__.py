"""What engines share: blocks of queries, how well graphs fill tiles, scores in pieces."""
