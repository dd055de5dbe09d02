"""The paper's experiments and the values it prints."""
