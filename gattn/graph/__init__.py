"""Token graphs: who may attend to whom."""
