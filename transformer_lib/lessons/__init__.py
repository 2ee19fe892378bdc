"""What the notebooks use to teach: claims, exercises that answer, and questions to answer before looking."""

from transformer_lib.lessons.claims import claim
from transformer_lib.lessons.exercises import check
from transformer_lib.lessons.predict import predict

# The sentence that travels through the course: nine tokens in the style of the story corpus. Only the name Mia says
# that the fox is a "she", so a model that writes the last word right must have read the name.
SENTENCE = "Once there was a fox named Mia. She"

__all__ = ["SENTENCE", "check", "claim", "predict"]
