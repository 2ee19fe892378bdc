"""What the notebooks use to teach: claims, exercises that answer, and questions to answer before looking."""

from transformer_lib.lessons.claims import claim
from transformer_lib.lessons.exercises import check
from transformer_lib.lessons.predict import predict

__all__ = ["check", "claim", "predict"]
