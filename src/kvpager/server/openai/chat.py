"""/v1/chat/completions."""

from fastapi import APIRouter

router = APIRouter()
