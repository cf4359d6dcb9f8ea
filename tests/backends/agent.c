/* A repository agent: on LOAD it decrypts `1/backend.enc` of a model into a directory of its own, and has the model loaded
 * from there. It logs each action, and fails at the one that the parameter `fail` names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host.h"

typedef struct Agent Agent;
typedef struct AgentModel AgentModel;

Error *TRITONREPOAGENT_ApiVersion(uint32_t *, uint32_t *);
Error *TRITONREPOAGENT_ModelRepositoryLocation(Agent *, AgentModel *, uint32_t *, const char **);
Error *TRITONREPOAGENT_ModelRepositoryLocationAcquire(Agent *, AgentModel *, uint32_t, const char **);
Error *TRITONREPOAGENT_ModelRepositoryLocationRelease(Agent *, AgentModel *, const char *);
Error *TRITONREPOAGENT_ModelRepositoryUpdate(Agent *, AgentModel *, uint32_t, const char *);
Error *TRITONREPOAGENT_ModelParameterCount(Agent *, AgentModel *, uint32_t *);
Error *TRITONREPOAGENT_ModelParameter(Agent *, AgentModel *, uint32_t, const char **, const char **);
Error *TRITONREPOAGENT_ModelConfig(Agent *, AgentModel *, uint32_t, Message **);
Error *TRITONREPOAGENT_ModelState(AgentModel *, void **);
Error *TRITONREPOAGENT_ModelSetState(AgentModel *, void *);
Error *TRITONREPOAGENT_State(Agent *, void **);
Error *TRITONREPOAGENT_SetState(Agent *, void *);

enum { FILESYSTEM, REMOTE };
enum { LOAD, LOAD_COMPLETE, LOAD_FAIL, UNLOAD, UNLOAD_COMPLETE };

static const char *const actions[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};

static Error *say(const char *text, const char *more) {
    char line[512];
    snprintf(line, sizeof line, "agent: %s%s", text, more);
    return TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, line);
}

static Error *refuse(const char *what) { return TRITONSERVER_ErrorNew(INTERNAL, what); }

/* Returns an error if a call did not fail. */
static Error *fails(Error *error, const char *what) {
    if (!error) {
        return refuse(what);
    }
    TRITONSERVER_ErrorDelete(error);
    return NULL;
}

EXPORTED Error *TRITONREPOAGENT_Initialize(Agent *agent) {
    uint32_t major, minor;
    void *state;
    TRY(TRITONREPOAGENT_ApiVersion(&major, &minor));
    if (major != 0 || minor < 1) {
        return refuse("another version of the interface");
    }
    TRY(TRITONREPOAGENT_SetState(agent, agent));
    TRY(TRITONREPOAGENT_State(agent, &state));
    return state == agent ? say("initialized", "") : refuse("another state");
}

EXPORTED Error *TRITONREPOAGENT_Finalize(Agent *agent) {
    (void)agent;
    return say("finalized", "");
}

/* The value of a parameter of the agent. */
static Error *parameter(Agent *agent, AgentModel *model, const char *wanted, const char **value) {
    uint32_t count;
    const char *name;
    TRY(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
    TRY(fails(TRITONREPOAGENT_ModelParameter(agent, model, count, &name, value), "a parameter too many"));
    *value = NULL;
    for (uint32_t index = 0; index < count; index++) {
        const char *found;
        TRY(TRITONREPOAGENT_ModelParameter(agent, model, index, &name, &found));
        if (strcmp(name, wanted) == 0) {
            *value = found;
        }
    }
    return NULL;
}

EXPORTED Error *TRITONREPOAGENT_ModelInitialize(Agent *agent, AgentModel *model) {
    Message *config;
    const char *json;
    size_t size;
    TRY(TRITONREPOAGENT_ModelConfig(agent, model, 1, &config));
    TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
    bool is_ours = size > 0 && json[0] == '{';
    TRY(TRITONSERVER_MessageDelete(config));
    TRY(fails(TRITONREPOAGENT_ModelConfig(agent, model, 2, &config), "version 2"));
    TRY(fails(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, FILESYSTEM, "/"), "an update before LOAD"));
    TRY(fails(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, "/"), "a release without a directory"));
    TRY(TRITONREPOAGENT_ModelSetState(model, malloc(1)));
    return is_ours ? NULL : refuse("no configuration");
}

EXPORTED Error *TRITONREPOAGENT_ModelFinalize(Agent *agent, AgentModel *model) {
    void *state;
    (void)agent;
    TRY(TRITONREPOAGENT_ModelState(model, &state));
    free(state);
    return say("the model is finalized", "");
}

/* Decrypts a file: every byte with the same key. */
static Error *decrypt(const char *from, const char *to, int key) {
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    if (!in || !out) {
        return refuse("a file cannot be opened");
    }
    for (int byte = fgetc(in); byte != EOF; byte = fgetc(in)) {
        fputc(byte ^ key, out);
    }
    fclose(in);
    fclose(out);
    return NULL;
}

static Error *load(Agent *agent, AgentModel *model) {
    const char *location, *own, *key;
    char from[512], to[512];
    uint32_t kind;
    TRY(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &kind, &location));
    TRY(parameter(agent, model, "key", &key));
    if (!key || kind != FILESYSTEM) {
        return NULL;
    }
    TRY(fails(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, REMOTE, &own), "a place elsewhere"));
    TRY(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, FILESYSTEM, &own));
    TRY(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, own));
    TRY(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, FILESYSTEM, &own));
    snprintf(to, sizeof to, "%s/1", own);
    mkdir(to, 0700);
    snprintf(from, sizeof from, "%s/1/backend.enc", location);
    snprintf(to, sizeof to, "%s/1/libtriton_secret.so", own);
    TRY(decrypt(from, to, atoi(key)));
    TRY(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, FILESYSTEM, own));
    return say("it is loaded from ", own);
}

EXPORTED Error *TRITONREPOAGENT_ModelAction(Agent *agent, AgentModel *model, uint32_t action) {
    const char *fail;
    TRY(parameter(agent, model, "fail", &fail));
    TRY(say(actions[action], ""));
    if (fail && strcmp(fail, actions[action]) == 0) {
        return TRITONSERVER_ErrorNew(UNAVAILABLE, "the agent fails on purpose");
    }
    return action == LOAD ? load(agent, model) : NULL;
}
