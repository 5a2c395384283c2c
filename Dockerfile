# The proxy alone: no cockpit, no SSH, no llama.cpp, no model. It asks servers that run elsewhere.
#
#   docker build -t quarterdeck-proxy .
#   docker run --network host -e QUARTERDECK_TARGET_URL=http://10.0.0.4:8080 quarterdeck-proxy
#
# It is configured by variables alone; `docker run quarterdeck-proxy --variables` explains each of them:
#
#   the servers      QUARTERDECK_TARGET_URL (required), QUARTERDECK_TARGET_MODEL, QUARTERDECK_TARGET_BACKEND,
#                    QUARTERDECK_TARGET_KEY, QUARTERDECK_TARGET_KEY_FILE, QUARTERDECK_TARGET_SLOTS,
#                    QUARTERDECK_TARGET_LET_FINISH, QUARTERDECK_TARGET_FIRST_BYTE_TIMEOUT,
#                    QUARTERDECK_TARGET_STALL_TIMEOUT
#   drafts           QUARTERDECK_SPECULATION, QUARTERDECK_DRAFT_URL, QUARTERDECK_DRAFT_MODEL,
#                    QUARTERDECK_DRAFT_BACKEND, QUARTERDECK_DRAFT_KEY, QUARTERDECK_DRAFT_KEY_FILE,
#                    QUARTERDECK_DRAFT_SLOTS, QUARTERDECK_DRAFT_LET_FINISH
#   who may use it   QUARTERDECK_LISTEN, QUARTERDECK_KEY, QUARTERDECK_KEY_FILE, QUARTERDECK_ALLOW_OPEN,
#                    QUARTERDECK_CORS, QUARTERDECK_NAMES
#   names            QUARTERDECK_ALIASES, QUARTERDECK_DEFAULT_MODEL
#   limits           QUARTERDECK_MAX_BODY, QUARTERDECK_MAX_HEAD, QUARTERDECK_MAX_CONNECTIONS, QUARTERDECK_HOLD_COUNT,
#                    QUARTERDECK_HOLD_SIZE, QUARTERDECK_HOLD_SECONDS, QUARTERDECK_KEEP_ALIVE,
#                    QUARTERDECK_NO_KEEP_ALIVE, QUARTERDECK_RETRIES
#   the rest         QUARTERDECK_REPAIR_OFF, QUARTERDECK_RECORDS, QUARTERDECK_KEEP_BODIES
#
# Alpine and not slim: Debian's slim image is larger than 120 MB by itself. All that is installed has wheels for musl.
FROM python:3.12-alpine

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

RUN adduser -D -H -u 10001 quarterdeck \
    && pip install --no-cache-dir "uvicorn>=0.34" "pyyaml>=6"

WORKDIR /opt/quarterdeck
COPY fleet ./fleet

USER 10001

EXPOSE 8088

HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-m", "fleet.proxy", "--health"]

ENTRYPOINT ["python", "-m", "fleet.proxy"]
