"""Pictures of what analyses return; `gattn.drawing` says what `ax`, `cmap` and `options` mean."""
