package catalog_test

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/generate/catalog"
)

const (
	tickFile = "observed.tick.v1.schema.json"
	tick     = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://lockstep.dev/schemas/events/observed.tick.v1.schema.json",
  "title": "ObservedTick",
  "description": "Time.",
  "x-lockstep-subject": "observed.{agent}.tick",
  "type": "object",
  "required": ["cluster_uid"],
  "properties": {
    "cluster_uid": {"description": "Cluster.", "type": "string"},
    "labels": {"description": "Labels.", "type": "object", "additionalProperties": {"type": "string"}},
    "all": {"description": "All.", "type": "array", "items": {"$ref": "#/$defs/One"}},
    "why": {"description": "Why.", "type": "string", "x-lockstep-known-values": ["a"]}
  },
  "$defs": {"One": {"description": "One.", "type": "object", "properties": {}}}
}`
)

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	_, err := catalog.Load(fstest.MapFS{tickFile: {Data: []byte(tick)}})
	require.NoError(t, err)
	for name, tc := range map[string]struct{ old, new, want string }{
		"another dialect": {
			"2020-12", "2019-09",
			`/: $schema "https://json-schema.org/draft/2019-09/schema" must be "https://json-schema.org/draft/2020-12/schema"`,
		},
		"another id": {
			"events/observed.tick.v1", "events/observed.tock.v1",
			`$id "https://lockstep.dev/schemas/events/observed.tock.v1.schema.json" must be ` +
				`"https://lockstep.dev/schemas/events/observed.tick.v1.schema.json"`,
		},
		"title": {"ObservedTick", "observed_tick", `title "observed_tick" must be in PascalCase`},
		"no sentence": {
			"Cluster.", "Cluster",
			`/properties/cluster_uid: the description must be a sentence that ends with a period, not "Cluster"`,
		},
		"definition undescribed": {`"description": "One.", `, "", `/$defs/One: the description must be a sentence`},
		"no subject": {
			`"x-lockstep-subject": "observed.{agent}.tick",`, "",
			`x-lockstep-subject "": must be <family>.<key…>`,
		},
		"odd subject": {
			"{agent}.tick", "<agent>.tick", `token "<agent>" is neither a snake_case word nor a {parameter}`,
		},
		"another family": {
			"observed.{agent}", "applied.{agent}", `must start with the family "observed" of the event`,
		},
		"empty list of subjects": {`"observed.{agent}.tick"`, `[]`, "must be a subject or a list of subjects"},
		"further subject of another family": {
			`"observed.{agent}.tick"`, `["observed.{agent}.tick", "applied.{agent}"]`,
			`"applied.{agent}": must start with the family "observed" of the event`,
		},
		"subject listed twice": {
			`"observed.{agent}.tick"`, `["observed.{agent}.tick", "observed.{agent}.tick"]`,
			`lists "observed.{agent}.tick" twice`,
		},
		"no object": {`"type": "object",
  "required"`, `"type": "array", "items": {"type":"string"},
  "required"`, "the data of an event must be of type object"},
		"unknown keyword": {
			`"type": "string"}`, `"type": "string", "oneOf": []}`,
			`/properties/cluster_uid: keyword "oneOf" is not supported`,
		},
		"camel case": {
			`"cluster_uid": {`, `"clusterUid": {`,
			`/properties/clusterUid: the name of a property must be in snake_case`,
		},
		"required nothing": {`["cluster_uid"]`, `["cluster"]`, `required "cluster" is not a property`},
		"untyped": {
			`"Cluster.", "type": "string"`, `"Cluster."`, `/properties/cluster_uid: type "" must be one of`,
		},
		"untyped items": {
			`"items": {"$ref": "#/$defs/One"}`, `"minItems": 0`, `/properties/all: an array needs items`,
		},
		"closed": {
			`"additionalProperties": {"type": "string"}`, `"additionalProperties": false`,
			"/properties/labels: additionalProperties must be absent or a schema",
		},
		"lost reference": {
			`"#/$defs/One"`, `"#/$defs/Two"`, "/properties/all/items: observed.tick.v1.schema.json: $ref",
		},
		"beside a reference": {
			`"$ref": "#/$defs/One"`, `"$ref": "#/$defs/One", "minLength": 1`,
			`keyword "minLength" beside $ref`,
		},
		"definition's name": {`"One": {`, `"one": {`, "/$defs/one: the name of a definition must be in PascalCase"},
		"enum and known": {
			`"x-lockstep-known-values": ["a"]`, `"x-lockstep-known-values": ["a"], "enum": ["a"]`,
			"must be a list of strings, on a string without enum",
		},
		"encoded text": {
			`"x-lockstep-known-values": ["a"]`, `"x-lockstep-encoded": true`,
			"/properties/why: x-lockstep-encoded must be true, on an object without properties",
		},
		"no schema": {
			`{"description": "Cluster.", "type": "string"}`, `true`,
			"/properties/cluster_uid: must be a schema object",
		},
		"array for the schema": {tick, `[]`, "must be an object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, tick, tc.old)
			_, err := catalog.Load(fstest.MapFS{tickFile: {Data: []byte(strings.Replace(tick, tc.old, tc.new, 1))}})
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestLoadRefusesInvalidFiles(t *testing.T) {
	t.Parallel()
	rename := func(name string) fstest.MapFS {
		base := strings.TrimSuffix(name, ".schema.json")
		return fstest.MapFS{name: {Data: []byte(strings.Replace(tick, "events/observed.tick.v1", "events/"+base, 1))}}
	}
	_, err := catalog.Load(rename("observed.tick.schema.json"))
	require.ErrorContains(t, err, "the name of the file must be <family>.<event>.v<number>.schema.json")
	_, err = catalog.Load(fstest.MapFS{})
	require.ErrorContains(t, err, "no event schema found")

	twice := rename("observed.tick.v2.schema.json")
	twice[tickFile] = &fstest.MapFile{Data: []byte(tick)}
	_, err = catalog.Load(twice)
	require.ErrorContains(t, err,
		`observed.tick.v2.schema.json: title "ObservedTick" is the title of observed.tick.v1.schema.json`)

	music := strings.NewReplacer("events/observed", "events/music", "observed.{agent}", "music.{agent}").Replace(tick)
	_, err = catalog.Load(fstest.MapFS{"music.tick.v1.schema.json": {Data: []byte(music)}})
	require.ErrorContains(t, err, `no stream stores the family "music"`)
}

func TestSubjectsMatchTheTopology(t *testing.T) {
	t.Parallel()
	const cell = topology.Cell("{cell}")
	// One value for each parameter.
	built := map[string]string{
		"observed.deployment.v1":             cell.Observed(7, "deployment", "n", "d"),
		"observed.replicaset.v1":             cell.Observed(7, "deployment", "n", "d"),
		"observed.pod.v1":                    cell.Observed(7, "deployment", "n", "d"),
		"observed.rejected.v1":               cell.ObservedRejected(7),
		"observed.resync_begun.v1":           cell.ObservedResync(7),
		"observed.resync_ended.v1":           cell.ObservedResync(7),
		"observed.workload.v1":               cell.ObservedWorkload(7, "deployment", "n", "d"),
		"observed.workload_revision.v1":      cell.ObservedWorkload(7, "deployment", "n", "d"),
		"observed.workload_pods.v1":          cell.ObservedWorkload(7, "deployment", "n", "d"),
		"deploy.fact.v1":                     cell.Deploy("c", "n", "deployment", "d", "completed"),
		"observed.members.v1":                cell.ObservedMembers(7),
		"observed.tick.v1":                   cell.ObservedTick(7),
		"observed.cluster_released.v1":       cell.ObservedClusterReleased("c"),
		"desired.workspace.v1":               cell.Desired(7, "w"),
		"applied.applied.v1":                 cell.Applied(7, "w"),
		"applied.apply_failed.v1":            cell.Applied(7, "w"),
		"applied.terminating.v1":             cell.Applied(7, "w"),
		"applied.terminated.v1":              cell.Applied(7, "w"),
		"control.config.v1":                  cell.ControlConfig(7),
		"control.resync.v1":                  cell.ControlResync(7),
		"control.read.v1":                    cell.ControlRead(7),
		"workspace.created.v1":               cell.Workspace(4, "w", "created"),
		"workspace.desired_state_changed.v1": cell.Workspace(4, "w", "desired_state_changed"),
		"workspace.state_changed.v1":         cell.Workspace(4, "w", "state_changed"),
		"workspace.drifted.v1":               cell.Workspace(4, "w", "drifted"),
		"workspace.expiry_warning.v1":        cell.Workspace(4, "w", "expiry_warning"),
		"workspace.orphaned.v1":              cell.Workspace(4, "w", "orphaned"),
		"workspace.orphan_deleted.v1":        cell.Workspace(4, "w", "orphan_deleted"),
		"agent.connected.v1":                 cell.AgentConnected(7),
		"agent.disconnected.v1":              cell.AgentDisconnected(7),
		"agent.blocked.v1":                   cell.AgentBlocked(7),
		"agent.silent.v1":                    cell.AgentSilent(7),
		"agent.returned.v1":                  cell.AgentReturned(7),
		"agent.requests.v1":                  cell.AgentRequests(7),
		"audit.requests.v1":                  cell.AuditRequests(7),
		"directory.organization.v1":          cell.Directory("organization", "3"),
		"directory.group.v1":                 cell.Directory("group", "3"),
		"directory.project.v1":               cell.Directory("project", "3"),
		"directory.user.v1":                  cell.Directory("user", "3"),
		"directory.membership.v1":            cell.Directory("membership", "3"),
		"directory.agent.v1":                 cell.Directory("agent", "3"),
		"directory.key.v1":                   cell.Directory("key", "3"),
		"job.created.v1":                     cell.Job(4, 9, "created"),
		"job.preparing.v1":                   cell.Job(4, 9, "preparing"),
		"job.admitted.v1":                    cell.Job(4, 9, "admitted"),
		"job.rejected.v1":                    cell.Job(4, 9, "rejected"),
		"job.pending.v1":                     cell.Job(4, 9, "pending"),
		"job.running.v1":                     cell.Job(4, 9, "running"),
		"job.canceling.v1":                   cell.Job(4, 9, "canceling"),
		"job.canceled.v1":                    cell.Job(4, 9, "canceled"),
		"job.finished.v1":                    cell.Job(4, 9, "finished"),
		"job.skipped.v1":                     cell.Job(4, 9, "skipped"),
		"job.retried.v1":                     cell.Job(4, 9, "retried"),
		"job.released.v1":                    cell.Job(4, 9, "released"),
		"job.moved.v1":                       cell.Job(4, 9, "moved"),
		"job.arrived.v1":                     cell.Job(4, 9, "arrived"),
		"admission.status.v1":                cell.Admission(4, 9, "status"),
		"admission.decided.v1":               cell.Admission(4, 9, "decided"),
		"runner.changed.v1":                  cell.Runner(31),
		"access.workspace.v1":                cell.AccessWorkspace("w"),
		"access.ssh_key.v1":                  cell.AccessSSHKey("f"),
		"activity.processes.v1":              cell.Activity("w"),
		"activity.workspace.v1":              cell.Activity("w"),
	}
	further := map[string]string{
		"observed.workload.v1":          cell.Observed(7, "deployment", "n", "d"),
		"observed.workload_revision.v1": cell.Observed(7, "deployment", "n", "d"),
	}
	values := map[string]string{
		"agent": "7", "kind": "deployment", "namespace": "n", "name": "d", "workspace": "w", "project": "4", "id": "3",
		"cluster": "c", "fact": "completed", "job": "9", "runner": "31", "fingerprint": "f",
	}
	c, err := catalog.Load(os.DirFS("../../../schemas/events"))
	require.NoError(t, err)
	for _, e := range c.Events {
		want := []string{built[e.Name]}
		if subject, known := further[e.Name]; known {
			want = append(want, subject)
		}
		got := make([]string, 0, len(e.Subjects))
		for _, subject := range e.Subjects {
			for _, name := range catalog.Parameters(subject) {
				subject = strings.Replace(subject, "{"+name+"}", values[name], 1)
			}
			got = append(got, topology.Root+".{cell}."+subject)
		}
		require.Equal(t, want, got, e.Name)
	}
	require.Len(t, built, len(c.Events))
}
