package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// copyOf returns a repository with what the generator reads and writes, and with the tools of this
// one. A test may change it.
func copyOf(t *testing.T) string {
	t.Helper()
	own, err := findRoot()
	require.NoError(t, err)
	// This builds missing tools, so that no copy does.
	_, err = open(t.Context(), own, os.Stderr)
	require.NoError(t, err)
	root := t.TempDir()
	for _, folder := range []string{"schemas", "docs/reference", "tools/generate/pinned"} {
		require.NoError(t, os.CopyFS(filepath.Join(root, folder), os.DirFS(filepath.Join(own, folder))))
	}
	require.NoError(t, os.Symlink(filepath.Join(own, "bin"), filepath.Join(root, "bin")))
	return root
}

func generateIn(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), append([]string{"--root", root}, args...), &out, &out)
	return out.String(), err
}

func replace(t *testing.T, root, path, old, now string) {
	t.Helper()
	file := filepath.Join(root, path)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(raw), old)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(raw), old, now, 1)), 0o600))
}

func TestCommittedFilesPassTheCheck(t *testing.T) {
	t.Parallel()
	root := copyOf(t)
	_, err := generateIn(t, root, "--check")
	require.NoError(t, err)
	out, err := generateIn(t, root)
	require.NoError(t, err)
	require.Empty(t, out, "no file changes")
}

func TestCheckReportsEveryFault(t *testing.T) {
	t.Parallel()
	edit := func(path, old, now string) func(*testing.T, string) {
		return func(t *testing.T, root string) { t.Helper(); replace(t, root, path, old, now) }
	}
	remove := func(path string) func(*testing.T, string) {
		return func(t *testing.T, root string) { t.Helper(); require.NoError(t, os.Remove(filepath.Join(root, path))) }
	}
	add := func(path string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte("{}"), 0o600))
		}
	}
	const containerName = "\"description\": \"Container name.\",\n          \"type\": "
	for name, tc := range map[string]struct {
		change func(t *testing.T, root string)
		want   string
	}{
		"edited Go types": {
			edit("schemas/gen/events/events.go", "type Verb string", "type Verb int"),
			"schemas/gen/events/events.go: is stale: run make generate",
		},
		"edited registry": {
			edit("schemas/gen/events/registry.go", "dev.lockstep.observed.tick.v1", "dev.lockstep.observed.tock.v1"),
			"schemas/gen/events/registry.go: is stale",
		},
		"edited decoders": {
			edit("schemas/gen/events/decoders.go", "r.boolean()", "true"),
			"schemas/gen/events/decoders.go: is stale",
		},
		"edited error codes": {
			edit("schemas/gen/errcode/errcode.go", `"not_found"`, `"notfound"`),
			"schemas/gen/errcode/errcode.go: is stale",
		},
		"changed error codes": {
			edit("schemas/errors.json", `"exit": 5,`, `"exit": 55,`),
			"schemas/gen/errcode/errcode.go: is stale",
		},
		"edited API": {
			edit("schemas/gen/lockstep/state/v1/token.pb.go", "package statev1", "package other"),
			"schemas/gen/lockstep/state/v1/token.pb.go: is stale",
		},
		"missing API": {
			remove("schemas/gen/lockstep/state/v1/token.pb.go"),
			"schemas/gen/lockstep/state/v1/token.pb.go: is missing",
		},
		"left over": {
			add("schemas/gen/lockstep/state/v1/old.pb.go"),
			"schemas/gen/lockstep/state/v1/old.pb.go: has no source any more",
		},
		"edited document": {
			edit("schemas/asyncapi.yaml", "Lockstep events", "Events"), "schemas/asyncapi.yaml: is stale",
		},
		"changed schema": {
			edit("schemas/events/observed.tick.v1.schema.json", "The time", "A time"),
			"schemas/gen/events/events.go: is stale",
		},
		"changed example": {
			edit("schemas/examples/observed.tick.v1.json", "10:40:15.002Z", "10:40:15.003Z"),
			"schemas/asyncapi.yaml: is stale",
		},
		"example of nothing": {
			add("schemas/examples/observed.tock.v1.json"),
			"schemas/examples/observed.tock.v1.json: has no event type: remove it",
		},
		"invalid example": {
			edit("schemas/examples/observed.tick.v1.json", `"observed_at"`, `"seen_at"`),
			"schemas/examples/observed.tick.v1.json: /data/: missing property 'observed_at'",
		},
		"golden event refused": {
			edit("schemas/events/observed.tick.v1.schema.json", `"minLength": 1`, `"minLength": 99`),
			"schemas/released/golden/v0.1.0/observed.tick.v1.json: /data/cluster_uid: minLength: got 36, want 99",
		},
		"missing example": {
			remove("schemas/examples/observed.tick.v1.json"), "write schemas/examples/observed.tick.v1.json",
		},
		"broken rule": {
			edit("schemas/events/observed.tick.v1.schema.json", "The time, UTC with milliseconds.", "The time"),
			"observed.tick.v1.schema.json: /properties/observed_at: the description must be a sentence that ends with a period",
		},
		"broken error code": {
			edit("schemas/errors.json", `"not_found", "http": 404`, `"not_found", "http": 200`),
			"not_found: http 200 is not an error status",
		},
		"removed event": {
			remove("schemas/events/observed.tick.v1.schema.json"),
			"observed.tick.v1: /: the type is gone: consumers of v1 would break; add observed.tick.v2 instead",
		},
		"retyped field": {
			edit("schemas/events/observed.pod.v1.schema.json", containerName+`"string"`, containerName+`"integer"`),
			"observed.pod.v1: /containers/items/name: type string became integer: " +
				"consumers of v1 would break; add observed.pod.v2 instead",
		},
		"shared field": {
			edit("schemas/events/common.schema.json", `"pattern": "^[0-9]+$"`, `"pattern": "^[0-9]{1,9}$"`),
			"observed.deployment.v1: /object/resource_version: pattern ^[0-9]+$ became ^[0-9]{1,9}$",
		},
		"no longer the same": {
			edit("schemas/events/observed.tick.v1.schema.json", "observed.{agent}.tick", "observed.{agent}.time"),
			"observed.tick.v1: /: subject observed.{agent}.tick is gone",
		},
		"error code gone": {
			edit("schemas/errors.json", `{"code": "conflict"`, `{"code": "collision"`),
			"conflict: the error code is gone: callers branch on it",
		},
		"error code renumbered": {
			edit("schemas/errors.json", `"exit": 7,`, `"exit": 77,`),
			"conflict: exit 7 became 77: callers branch on it",
		},
		"no baseline": {func(t *testing.T, root string) {
			t.Helper()
			require.NoError(t, os.RemoveAll(filepath.Join(root, "schemas/released/events")))
		}, "schemas/released/events: is empty"},
		"API lint": {
			edit("schemas/proto/lockstep/state/v1/token.proto",
				"message ListTokensRequest {", "message bad_name {}\nmessage ListTokensRequest {"),
			"bad_name",
		},
		"API break": {
			edit("schemas/proto/lockstep/state/v1/token.proto", "string name = 3;", "bytes name = 3;"),
			`Field "3" with name "name" on message "Token" changed type`,
		},
		"API that is no proto": {
			edit("schemas/proto/lockstep/state/v1/token.proto", "string name = 3;", "string name;"),
			"token.proto",
		},
		"API renumbered field": {
			edit("schemas/proto/lockstep/state/v1/token.proto", "bool revoked = 7;", "bool revoked = 99;"),
			`"7" with name "revoked" on message "Token" was deleted`,
		},
		"schema that is no JSON": {
			edit("schemas/events/observed.tick.v1.schema.json", "{", ""),
			"observed.tick.v1.schema.json: is not JSON",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := copyOf(t)
			tc.change(t, root)
			_, err := generateIn(t, root, "--check")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestGenerateRepairsFiles(t *testing.T) {
	t.Parallel()
	root := copyOf(t)
	left := filepath.Join(root, "schemas/gen/lockstep/state/v1/old.pb.go")
	require.NoError(t, os.WriteFile(left, []byte("{}"), 0o600))
	replace(t, root, "schemas/gen/events/events.go", "type Verb string", "type Verb int")
	replace(t, root, "schemas/events/observed.tick.v1.schema.json", "The time", "A time")
	out, err := generateIn(t, root)
	require.NoError(t, err)
	require.Contains(t, out, "schemas/gen/events/events.go\n")
	require.NoFileExists(t, left)
	_, err = generateIn(t, root, "--check")
	require.NoError(t, err)
}

func TestReleaseBecomesTheBaseline(t *testing.T) {
	t.Parallel()
	root := copyOf(t)
	released, err := os.ReadFile(filepath.Join(root, releasedVersion))
	require.NoError(t, err)
	last := strings.TrimSpace(string(released))
	const next = "v99.0.0"

	// A new optional field is compatible. Once released, it cannot be removed.
	schema := "schemas/events/observed.tick.v1.schema.json"
	const drift = ` "drift_ms": {"description": "Drift.", "type": "integer"},`
	replace(t, root, schema, `"properties": {`, `"properties": {`+drift)
	_, err = generateIn(t, root, "release", next)
	require.ErrorContains(t, err, "is stale", "stale files are not released")
	_, err = generateIn(t, root)
	require.NoError(t, err)
	for version, want := range map[string]string{
		last:        "must be higher than the last one, " + last,
		"v0.0.1":    "must be higher",
		"99":        "is written as v0.2.0",
		"v99.0":     "is written as v0.2.0",
		"v99.0.0+x": "is written as",
	} {
		_, err = generateIn(t, root, "release", version)
		require.ErrorContains(t, err, want, version)
	}
	out, err := generateIn(t, root, "release", next)
	require.NoError(t, err)
	require.Contains(t, out, "schemas/released/VERSION\n")
	for _, release := range []string{last, next} {
		require.FileExists(t, filepath.Join(root, goldenEvents, release, "observed.tick.v1.json"), "all releases are kept")
	}
	_, err = generateIn(t, root, "--check")
	require.NoError(t, err)

	replace(t, root, schema, drift, "")
	_, err = generateIn(t, root, "--check")
	require.ErrorContains(t, err, "observed.tick.v1: /drift_ms: the field is gone")

	replace(t, root, "schemas/admission/request.v1.schema.json", `"tags": {`, `"labels": {`)
	replace(t, root, "schemas/admission/answer.v1.schema.json", `"maxItems": 1000`, `"maxItems": 999`)
	_, err = generateIn(t, root, "--check")
	require.ErrorContains(t, err, "request.v1: /items/tags: the field is gone")
	require.ErrorContains(t, err, "answer.v1: /items/runners/accepted_ids: maxItems")
}

func TestRunRefusesUnknownCommands(t *testing.T) {
	t.Parallel()
	root := copyOf(t)
	for _, args := range [][]string{
		{"generate"}, {"release"}, {"release", "v1.0.0", "more"}, {"--check", "release", "v9.9.9"},
	} {
		_, err := generateIn(t, root, args...)
		require.ErrorContains(t, err, "unknown command", args)
	}
	_, err := generateIn(t, root, "--nothing")
	require.ErrorContains(t, err, "nothing")
	_, err = generateIn(t, t.TempDir())
	require.ErrorContains(t, err, "read the pinned tools")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, []string{"--root", root}, os.Stderr, os.Stderr), context.Canceled)
}
