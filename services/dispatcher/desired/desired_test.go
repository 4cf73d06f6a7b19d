package desired_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	cell  = topology.Cell("local")
	agent = int64(7)
	id    = "0198c2a4-0000-7000-8000-000000000001"
)

func policy() desired.Policy {
	return desired.Policy{
		Agent: agent, NamespacePrefix: "ws-", PodSecurity: desired.PodSecurityRestricted, Kinds: desired.KindNames(),
	}
}

// manifest returns an allowed manifest. metadata is JSON that is merged into its metadata.
func manifest(apiVersion, kind, name, namespace, metadata string) map[string]any {
	meta := map[string]any{"name": name, "labels": map[string]any{desired.LabelAgent: "7", desired.LabelWorkspace: id}}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	if metadata != "" {
		if err := json.Unmarshal([]byte(metadata), &meta); err != nil {
			panic(err)
		}
	}
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": meta}
}

func configMap(metadata string) map[string]any {
	return manifest("v1", "ConfigMap", "files", "ws-7-a", metadata)
}

func data(change func(*events.DesiredWorkspace)) events.DesiredWorkspace {
	w := events.DesiredWorkspace{
		WorkspaceID: id, Name: "a", Namespace: "ws-7-a", DesiredRevision: 3, Target: events.DesiredTargetRunning,
		Manifests: []map[string]any{configMap("")}, Secrets: []events.SecretReference{{Name: "variables", Digest: "d"}},
	}
	if change != nil {
		change(&w)
	}
	return w
}

// decode sends the data through an event.
func decode(t *testing.T, content any) (desired.Workspace, error) {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type: events.TypeDesiredWorkspace, Source: "/lockstep/local/state", Subject: id, ID: "1", Time: time.Unix(0, 0),
	}, content)
	require.NoError(t, err)
	message, err := event.Encode(e, cell.Desired(agent, id))
	require.NoError(t, err)
	return desired.Decode(cell, agent, message.Subject, message.Header, message.Data)
}

func TestDecodeKeepsAllFields(t *testing.T) {
	t.Parallel()
	w, err := decode(t, data(func(w *events.DesiredWorkspace) {
		w.Manifests[0]["large"] = json.Number("9007199254740993")
	}))
	require.NoError(t, err)
	require.Nil(t, policy().Check(w))
	require.Equal(t, int64(3), w.Revision)
	require.Equal(t, int64(9007199254740993), w.Objects[0].Manifest["large"], "a float64 would be …992")
	require.Equal(t, []desired.Reference{
		desired.NamespaceReference("ws-7-a"),
		desired.SecretReference("ws-7-a", "variables"),
		{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "ws-7-a", Name: "files"},
	}, w.References())
}

func TestDecodeRejectsMalformedEvents(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]any{
		"no object":                   []int{1},
		"another workspace":           data(func(w *events.DesiredWorkspace) { w.WorkspaceID = "other" }),
		"no revision":                 data(func(w *events.DesiredWorkspace) { w.DesiredRevision = 0 }),
		"a revision beyond numbers":   data(func(w *events.DesiredWorkspace) { w.DesiredRevision = 1 << 53 }),
		"a manifest without metadata": data(func(w *events.DesiredWorkspace) { delete(w.Manifests[0], "metadata") }),
		"a manifest without kind":     data(func(w *events.DesiredWorkspace) { delete(w.Manifests[0], "kind") }),
		"a kind that is not a string": data(func(w *events.DesiredWorkspace) { w.Manifests[0]["kind"] = 1 }),
		"a name that is not a string": data(func(w *events.DesiredWorkspace) { w.Manifests[0] = configMap(`{"name":{}}`) }),
	} {
		w, err := decode(t, content)
		var f *failure.Failure
		require.ErrorAs(t, err, &f, name)
		require.Equal(t, failure.Malformed, f.Reason, name)
		require.True(t, f.Final, name)
		require.Equal(t, id, w.ID, "the workspace id is read from the subject")
	}
	w, err := desired.Decode(cell, agent, cell.Desired(agent, id), nil, []byte("no event"))
	require.Error(t, err)
	require.Equal(t, id, w.ID)
	require.Zero(t, w.Revision)
	for _, subject := range []string{
		"", "lockstep.local.desired.7", "lockstep.other.desired.7." + id,
		"lockstep.local.desired.8." + id, "lockstep.local.applied.7." + id, "lockstep.local.desired.7.a.b",
	} {
		_, err := desired.Decode(cell, agent, subject, nil, nil)
		require.ErrorIs(t, err, desired.ErrUnknownWorkspace, subject)
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*events.DesiredWorkspace)
		want   failure.Reason // none: allowed
	}{
		{"as it is", nil, ""},
		{"stopped", func(w *events.DesiredWorkspace) { w.Target = events.DesiredTargetStopped }, ""},
		{"terminated needs no manifests", func(w *events.DesiredWorkspace) {
			w.Target, w.Manifests = events.DesiredTargetTerminated, nil
		}, ""},
		{"terminated elsewhere", func(w *events.DesiredWorkspace) {
			w.Target, w.Manifests, w.Namespace = events.DesiredTargetTerminated, nil, "kube-system"
		}, failure.NotAllowed},
		{"an orphan to be deleted", func(w *events.DesiredWorkspace) {
			w.Target, w.Manifests = events.DesiredTargetTerminated,
				[]map[string]any{manifest("apps/v1", "Deployment", "p", "ws-7-a", `{"labels":null}`)}
		}, ""},
		{"an orphan to be deleted elsewhere", func(w *events.DesiredWorkspace) {
			w.Target, w.Manifests = events.DesiredTargetTerminated,
				[]map[string]any{manifest("apps/v1", "Deployment", "p", "kube-system", "")}
		}, failure.NotAllowed},
		{"an orphan of another kind", func(w *events.DesiredWorkspace) {
			w.Target, w.Manifests = events.DesiredTargetTerminated, []map[string]any{manifest("v1", "Pod", "p", "ws-7-a", "")}
		}, failure.NotAllowed},
		{"an orphan whose name is a path", func(w *events.DesiredWorkspace) {
			w.Target, w.Manifests = events.DesiredTargetTerminated,
				[]map[string]any{manifest("apps/v1", "Deployment", "../x", "ws-7-a", "")}
		}, failure.Malformed},
		{"unknown target", func(w *events.DesiredWorkspace) { w.Target = "paused" }, failure.Malformed},
		{"nothing to apply would prune all", func(w *events.DesiredWorkspace) { w.Manifests = nil }, failure.Malformed},
		{"another namespace", func(w *events.DesiredWorkspace) { w.Namespace = "kube-system" }, failure.NotAllowed},
		{"no namespace name", func(w *events.DesiredWorkspace) { w.Namespace = "ws-7/.." }, failure.NotAllowed},
		{"an object elsewhere", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = configMap(`{"namespace":"kube-system"}`)
		}, failure.NotAllowed},
		{"an object nowhere", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = configMap(`{"namespace":""}`)
		}, failure.NotAllowed},
		{"another kind", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("v1", "Pod", "p", "ws-7-a", "")
		}, failure.NotAllowed},
		{"a known kind of another group", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("evil.example/v1", "Deployment", "p", "ws-7-a", "")
		}, failure.NotAllowed},
		{"a cluster role", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("rbac.authorization.k8s.io/v1", "ClusterRole", "p", "", "")
		}, failure.NotAllowed},
		{"a Secret manifest", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("v1", "Secret", "p", "ws-7-a", "")
		}, failure.NotAllowed},
		{"the cluster's own object", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = configMap(`{"name":"kube-root-ca.crt"}`)
		}, failure.NotAllowed},
		{"no labels", func(w *events.DesiredWorkspace) { w.Manifests[0] = configMap(`{"labels":null}`) }, failure.NotAllowed},
		{"labels of another agent", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = configMap(`{"labels":{"lockstep.dev/agent":"8"}}`)
		}, failure.NotAllowed},
		{"owner references", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = configMap(`{"ownerReferences":[]}`)
		}, failure.NotAllowed},
		{"a UID", func(w *events.DesiredWorkspace) { w.Manifests[0] = configMap(`{"uid":"x"}`) }, failure.NotAllowed},
		{"finalizers", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = configMap(`{"finalizers":["x"]}`)
		}, failure.NotAllowed},
		{"a name that is a path", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = configMap(`{"name":"../secrets/x"}`)
		}, failure.Malformed},
		{"twice the same", func(w *events.DesiredWorkspace) {
			w.Manifests = append(w.Manifests, configMap(""))
		}, failure.Malformed},
		{"a Secret without digest", func(w *events.DesiredWorkspace) { w.Secrets[0].Digest = "" }, failure.Malformed},
		{"a Secret twice", func(w *events.DesiredWorkspace) {
			w.Secrets = append(w.Secrets, w.Secrets[0])
		}, failure.Malformed},
		{"a Secret with a path", func(w *events.DesiredWorkspace) { w.Secrets[0].Name = "../x" }, failure.Malformed},
		{"its namespace", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("v1", "Namespace", "ws-7-a", "", "")
		}, ""},
		{"namespace of another workspace", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("v1", "Namespace", "ws-7-b", "", "")
		}, failure.NotAllowed},
		{"pod security", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("v1", "Namespace", "ws-7-a", "",
				`{"labels":{"lockstep.dev/agent":"7","lockstep.dev/workspace":"`+id+
					`","pod-security.kubernetes.io/enforce":"restricted"}}`)
		}, ""},
		{"weaker pod security", func(w *events.DesiredWorkspace) {
			w.Manifests[0] = manifest("v1", "Namespace", "ws-7-a", "",
				`{"labels":{"lockstep.dev/agent":"7","lockstep.dev/workspace":"`+id+
					`","pod-security.kubernetes.io/enforce":"privileged"}}`)
		}, failure.NotAllowed},
		{"too much", func(w *events.DesiredWorkspace) {
			w.Manifests[0]["data"] = strings.Repeat("x", desired.MaxSize)
		}, failure.TooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w, err := decode(t, data(test.change))
			require.NoError(t, err)
			refusal := policy().Check(w)
			if test.want == "" {
				require.Nil(t, refusal)
				return
			}
			require.NotNil(t, refusal)
			require.Equal(t, test.want, refusal.Reason, refusal.Message)
			require.True(t, refusal.Final)
		})
	}
}

func TestNamespaceHasPodSecurityByDefault(t *testing.T) {
	t.Parallel()
	w, err := decode(t, data(func(w *events.DesiredWorkspace) {
		w.Manifests = append(w.Manifests, manifest("v1", "Namespace", "ws-7-a", "", `{"annotations":{"a":"b"}}`))
	}))
	require.NoError(t, err)
	before := fmt.Sprint(w.Objects)
	namespace := policy().Namespace(w)
	require.Equal(t, before, fmt.Sprint(w.Objects), "the input is not changed")
	require.Equal(t, map[string]any{
		"name":        "ws-7-a",
		"annotations": map[string]any{"a": "b"},
		"labels": map[string]any{
			desired.LabelAgent: "7", desired.LabelWorkspace: id,
			"pod-security.kubernetes.io/enforce": "restricted",
		},
	}, namespace.Manifest["metadata"])
}

func TestPrune(t *testing.T) {
	t.Parallel()
	a, b, c := desired.SecretReference("n", "a"), desired.SecretReference("n", "b"), desired.SecretReference("n", "c")
	namespace := desired.NamespaceReference("n")
	for _, test := range []struct{ inventory, desired, want []desired.Reference }{
		{nil, nil, nil},
		{nil, []desired.Reference{a}, nil},
		{[]desired.Reference{a, b, c}, []desired.Reference{b}, []desired.Reference{c, a}},
		{[]desired.Reference{a, a}, nil, []desired.Reference{a}},
		{[]desired.Reference{namespace, a}, nil, []desired.Reference{a}},
	} {
		require.Equal(t, test.want, desired.Prune(test.inventory, test.desired))
	}
	require.Equal(t, []desired.Reference{a, b, c}, desired.Union([]desired.Reference{a, b, a}, []desired.Reference{b, c}))
}

// FuzzPolicy: every accepted workspace stays in its namespace and has the labels of its owner.
func FuzzPolicy(f *testing.F) {
	seed, err := json.Marshal(data(nil))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(
		[]byte(`{"workspace_id":"` + id + `","namespace":"ws-","desired_revision":1,"target":"running","manifests":[null]}`),
	)
	f.Fuzz(func(t *testing.T, content []byte) {
		w, err := decode(t, json.RawMessage(valid(content)))
		if err != nil {
			var refusal *failure.Failure
			require.True(t, errors.As(err, &refusal) && refusal.Final && len(refusal.Message) <= failure.MaxMessage)
			return
		}
		if policy().Check(w) != nil {
			return
		}
		require.True(t, strings.HasPrefix(w.Namespace, "ws-"))
		if w.Target == events.DesiredTargetTerminated {
			return
		}
		for _, reference := range w.References() {
			_, known := desired.LookupKind(reference.ApiVersion, reference.Kind)
			require.True(t, known)
			require.True(t, reference.Namespace == w.Namespace || reference == desired.NamespaceReference(w.Namespace))
		}
	})
}

func valid(content []byte) []byte {
	if json.Valid(content) {
		return content
	}
	return []byte("{}")
}

func TestPolicyRejectsKindsThatAreNotAllowed(t *testing.T) {
	t.Parallel()
	few := desired.Policy{
		Agent: agent, NamespacePrefix: "ws-", Kinds: []string{desired.KindNamespace, desired.KindDeployment},
	}
	for name, test := range map[string]struct {
		change  func(*events.DesiredWorkspace)
		message string // empty: allowed
	}{
		"a kind that is not allowed": {func(w *events.DesiredWorkspace) {
			w.Secrets = nil
		}, "ConfigMap ws-7-a/files: this agent is configured to apply only objects of the kinds Namespace, Deployment"},
		"a Secret": {func(w *events.DesiredWorkspace) {
			w.Manifests = []map[string]any{manifest("apps/v1", "Deployment", "w", "ws-7-a", "")}
		}, "Secret ws-7-a/"},
		"all kinds allowed": {func(w *events.DesiredWorkspace) {
			w.Secrets, w.Manifests = nil, []map[string]any{manifest("apps/v1", "Deployment", "w", "ws-7-a", "")}
		}, ""},
		"an orphan with some allowed kinds": {func(w *events.DesiredWorkspace) {
			w.Target = events.DesiredTargetTerminated
			w.Manifests = []map[string]any{
				manifest("v1", "Service", "w", "ws-7-a", ""), manifest("apps/v1", "Deployment", "w", "ws-7-a", ""),
			}
		}, ""},
		"an orphan with no allowed kind": {func(w *events.DesiredWorkspace) {
			w.Target, w.Manifests = events.DesiredTargetTerminated,
				[]map[string]any{manifest("v1", "Service", "w", "ws-7-a", "")}
		}, "Service ws-7-a/w"},
	} {
		w, err := decode(t, data(test.change))
		require.NoError(t, err, name)
		refusal := few.Check(w)
		if test.message == "" {
			require.Nil(t, refusal, name)
			for _, object := range few.DeletableObjects(w) {
				require.Equal(t, desired.KindDeployment, object.Kind, name)
			}
			continue
		}
		require.NotNil(t, refusal, name)
		require.Equal(t, failure.NotAllowed, refusal.Reason, name)
		require.Contains(t, refusal.Message, test.message, name)
	}
}
