"""In the model's directory, above its versions."""

SCALE = 10
