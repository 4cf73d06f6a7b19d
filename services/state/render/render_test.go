package render_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/render"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newWorkspace(tb testing.TB, spec workspace.Spec) workspace.Workspace {
	tb.Helper()
	w, _, err := workspace.New(
		workspace.Creation{Name: "ide", ProjectID: 4, AgentID: 7, UserID: 9, Spec: spec, Now: time.Unix(0, 0)},
	)
	require.NoError(tb, err)
	w.ID = uuid.MustParse("0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa")
	return w
}

func full() workspace.Spec {
	return workspace.Spec{
		Image:      "registry.example/ide:9",
		CPU:        "1500m",
		Memory:     "2Gi",
		VolumeSize: "20Gi",
		Command:    []string{"/bin/ide", "--serve"},
		Ports: []workspace.Port{
			{Name: "http", Number: 8080},
			{Name: "ssh", Number: 2222},
		},
		Env: map[string]string{"B": "$(A)", "A": "1", "C": ""},
		SecretEnv: []string{
			"TOKEN",
		},
		SecretFiles:       []string{"netrc", "ssh/id ed25519"},
		SecretEnvDigest:   "d1",
		SecretFilesDigest: "d2",
		PullSecretDigest:  "d3",
	}
}

func withProjects(s workspace.Spec) workspace.Spec {
	s.Projects = []workspaceagent.Project{{
		Name: "shop", URL: "https://git.example/shop.git", Revision: "main", Folder: "src/shop", Depth: 1,
		Remotes: map[string]string{"fork": "git@git.example:ada/shop.git"},
	}}
	return s
}

func withContainers(s workspace.Spec) workspace.Spec {
	s.Mounts = []workspace.Mount{
		{Volume: "m2", Path: "/home/user/.m2"}, {Volume: "scratch", Path: "/scratch", Ephemeral: true}, {Path: "/projects"},
	}
	s.Containers = []workspace.Container{
		{
			Name: "db", Image: "registry.example/postgres:17", CPU: "500m", Memory: "1Gi", Args: []string{"-c", "fsync=$(OFF)"},
			Env:       map[string]string{"PGDATA": "/data/pg", "A": "$(B)"},
			Mounts:    []workspace.Mount{{Volume: "data", Path: "/data"}, {Volume: "scratch", Path: "/tmp", Ephemeral: true}},
			PostStart: []string{"psql -f 'seed.sql'", "echo ready"},
		},
		{Name: "cache", Image: "registry.example/redis:8", Memory: "256Mi", Command: []string{"redis-server"}},
	}
	s.PostStart = []workspaceagent.Command{{Name: "build", Line: "cd \"${PROJECT_SOURCE}\" || exit 1\nmake"}}
	s.Commands = []workspaceagent.Command{{Name: "test", Line: "make test"}}
	s.Warnings = []string{"metadata.globalMemoryLimit: has no effect"}
	return s
}

func withAgent() agent.Manifests {
	m := agent.DefaultManifests()
	m.AgentImage = "registry.example/workspace-agent:1"
	m.SSHAuthorities = []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFbVu5ut76D36vYtaiIGYjo3BSiuzKRoqXwTUVwXm+V0"}
	return m
}

func withQuota(m agent.Manifests) agent.Manifests {
	m.ResourceQuota = true
	return m
}

func withEditor(s workspace.Spec) workspace.Spec {
	s.Editor = &workspace.Editor{
		Image: "registry.example/editor:1", Path: "/opt/$editor", Command: "exec $EDITOR_FOLDER/bin/editor", Port: 13337,
	}
	return s
}

func withOwner(m agent.Manifests) agent.Manifests {
	m.OwnerAccess = true
	return m
}

// desired renders a workspace and decodes the event data.
func desired(w workspace.Workspace, m agent.Manifests) (events.DesiredWorkspace, error) {
	var d events.DesiredWorkspace
	data, err := render.Desired(w, m)
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(data, &d)
}

// TestGolden compares with testdata. Set UPDATE_GOLDEN=1 to write it.
func TestGolden(t *testing.T) {
	t.Parallel()
	stopped := newWorkspace(t, full())
	stopped.DesiredState, stopped.DesiredRevision = workspace.DesiredRestartRequested, 12
	for name, test := range map[string]struct {
		workspace workspace.Workspace
		settings  agent.Manifests
	}{
		"args": {
			newWorkspace(t, workspace.Spec{Image: "ide", Args: []string{"tail", "-f", "$(HOME)/log"}}),
			agent.DefaultManifests(),
		},
		"least":   {newWorkspace(t, workspace.Spec{Image: "ide"}), agent.DefaultManifests()},
		"full":    {newWorkspace(t, full()), agent.DefaultManifests()},
		"stopped": {stopped, agent.DefaultManifests()},
		"settings": {newWorkspace(t, workspace.Spec{Image: "ide", StorageClass: "fast"}), agent.Manifests{
			IngressPeers: []string{"lockstep-agent-{agent_id}:p=1:q=2", "monitoring"}, DNSPeers: []string{"dns:d=1"},
			PrivateRanges: []string{"10.0.0.0/8"}, EgressAllowed: []string{"10.1.0.0/16"},
			ProgressDeadline: time.Minute, ResourceQuota: true,
		}},
		"agent":       {newWorkspace(t, withProjects(full())), withAgent()},
		"containers":  {newWorkspace(t, withContainers(full())), withQuota(withAgent())},
		"agent_alone": {newWorkspace(t, workspace.Spec{Image: "ide"}), withAgent()},
		"editor":      {newWorkspace(t, withEditor(workspace.Spec{Image: "ide"})), withAgent()},
		"owner":       {newWorkspace(t, workspace.Spec{Image: "ide"}), withOwner(agent.DefaultManifests())},
		"closed":      {newWorkspace(t, workspace.Spec{Image: "ide"}), agent.Manifests{ProgressDeadline: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := desired(test.workspace, test.settings)
			require.NoError(t, err)
			data, err := json.Marshal(got)
			require.NoError(t, err)
			require.NoError(t, events.Validate(events.TypeDesiredWorkspace, data))
			readable, err := yaml.JSONToYAML(data)
			require.NoError(t, err)
			file := filepath.Join("testdata", name+".yaml")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(file, readable, 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(readable))
			for _, m := range got.Manifests {
				decodeStrictly(t, m)
				require.Subset(t, m["metadata"].(map[string]any)["labels"], map[string]any{
					"lockstep.dev/agent":          "7",
					"lockstep.dev/workspace":      test.workspace.ID.String(),
					"lockstep.dev/workspace-name": "ide",
				})
			}
		})
	}
}

// decodeStrictly decodes a manifest as its kind. Unknown or lost fields are errors.
func decodeStrictly(t *testing.T, manifest map[string]any) {
	t.Helper()
	into, known := map[string]any{
		"v1/Namespace": &corev1.Namespace{}, "v1/ServiceAccount": &corev1.ServiceAccount{},
		"networking.k8s.io/v1/NetworkPolicy": &networkingv1.NetworkPolicy{},
		"v1/ResourceQuota":                   &corev1.ResourceQuota{},
		"v1/PersistentVolumeClaim":           &corev1.PersistentVolumeClaim{},
		"v1/ConfigMap":                       &corev1.ConfigMap{},
		"v1/Service":                         &corev1.Service{},
		"apps/v1/Deployment":                 &appsv1.Deployment{},

		"rbac.authorization.k8s.io/v1/RoleBinding": &rbacv1.RoleBinding{},
	}[fmt.Sprintf("%s/%s", manifest["apiVersion"], manifest["kind"])]
	require.True(t, known, manifest["kind"])
	data, err := json.Marshal(manifest)
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(into))
	again, err := json.Marshal(into)
	require.NoError(t, err)
	var back map[string]any
	require.NoError(t, json.Unmarshal(again, &back))
	delete(back, "status")
	want, err := json.Marshal(manifest)
	require.NoError(t, err)
	got, err := json.Marshal(back)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func TestRenderIsDeterministic(t *testing.T) {
	t.Parallel()
	quota := agent.DefaultManifests()
	quota.ResourceQuota = true
	spec := full()
	for i := range 50 {
		spec.Env[fmt.Sprintf("V%d", i)] = "x"
	}
	var first []byte
	for range 20 {
		got, err := desired(newWorkspace(t, spec), quota)
		require.NoError(t, err)
		data, err := json.Marshal(got)
		require.NoError(t, err)
		if first == nil {
			first = data
		}
		require.Equal(t, string(first), string(data))
	}
}

// template returns the pod template of a rendered workspace as JSON.
func template(t *testing.T, w workspace.Workspace) string {
	t.Helper()
	got, err := desired(w, agent.DefaultManifests())
	require.NoError(t, err)
	deployment := got.Manifests[len(got.Manifests)-1]
	require.Equal(t, "Deployment", deployment["kind"])
	data, err := json.Marshal(deployment["spec"].(map[string]any)["template"])
	require.NoError(t, err)
	return string(data)
}

func TestChangesThatReplaceThePod(t *testing.T) {
	t.Parallel()
	base := newWorkspace(t, full())
	for name, test := range map[string]struct {
		change   func(w *workspace.Workspace)
		replaces bool
	}{
		"another revision": {func(w *workspace.Workspace) { w.DesiredRevision = 9 }, false},
		"a stop": {
			func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStopped }, false,
		},
		"a larger volume":                 {func(w *workspace.Workspace) { w.Spec.VolumeSize = "30Gi" }, false},
		"a new secret variable":           {func(w *workspace.Workspace) { w.Spec.SecretEnvDigest = "d9" }, true},
		"a new secret file":               {func(w *workspace.Workspace) { w.Spec.SecretFilesDigest = "d9" }, true},
		"another image":                   {func(w *workspace.Workspace) { w.Spec.Image = "other" }, true},
		"another argument":                {func(w *workspace.Workspace) { w.Spec.Args = []string{"--debug"} }, true},
		"another plain variable":          {func(w *workspace.Workspace) { w.Spec.Env = map[string]string{"A": "2"} }, true},
		"another amount of memory":        {func(w *workspace.Workspace) { w.Spec.Memory = "3Gi" }, true},
		"the same amount in another unit": {func(w *workspace.Workspace) { w.Spec.Memory = "2048Mi" }, false},
	} {
		changed := base
		test.change(&changed)
		require.Equal(t, test.replaces, template(t, base) != template(t, changed), name)
	}
}

func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	got, err := desired(newWorkspace(t, withProjects(full())), withAgent())
	require.NoError(t, err)
	require.Equal(
		t,
		"restricted",
		got.Manifests[0]["metadata"].(map[string]any)["labels"].(map[string]any)["pod-security.kubernetes.io/enforce"],
	)
	data, err := json.Marshal(got.Manifests[len(got.Manifests)-1])
	require.NoError(t, err)
	var d appsv1.Deployment
	require.NoError(t, json.Unmarshal(data, &d))
	pod := d.Spec.Template.Spec
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.NotZero(t, *pod.SecurityContext.RunAsUser)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	require.False(t, *pod.AutomountServiceAccountToken)
	require.Len(t, pod.InitContainers, 2)
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
		require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
		require.Empty(t, c.SecurityContext.Capabilities.Add)
	}
	for _, v := range pod.Volumes {
		require.True(t, v.PersistentVolumeClaim != nil || v.Secret != nil || v.ConfigMap != nil || v.EmptyDir != nil, v.Name)
	}
}

// The agent reads its configuration from the file that the ConfigMap becomes.
func TestConfigurationOfTheAgentIsValid(t *testing.T) {
	t.Parallel()
	w, settings := newWorkspace(t, withProjects(full())), withAgent()
	got, err := desired(w, settings)
	require.NoError(t, err)
	var found bool
	for _, m := range got.Manifests {
		if m["kind"] != "ConfigMap" {
			continue
		}
		found = true
		config, err := workspaceagent.Parse([]byte(m["data"].(map[string]any)["workspace.json"].(string)))
		require.NoError(t, err)
		require.Equal(t, workspaceagent.Config{
			Workspace: w.ID.String(), Authorities: settings.SSHAuthorities, Home: "/workspace", Projects: w.Spec.Projects,
			Credentials: "/run/secrets/workspace",
		}, config)
	}
	require.True(t, found)
}

// New authorities are read from the mounted file. A restart would end people's work.
func TestNewAuthoritiesDoNotReplaceThePod(t *testing.T) {
	t.Parallel()
	w, rotated := newWorkspace(t, full()), withAgent()
	rotated.SSHAuthorities = append(rotated.SSHAuthorities, rotated.SSHAuthorities[0]+" new")
	before, err := desired(w, withAgent())
	require.NoError(t, err)
	after, err := desired(w, rotated)
	require.NoError(t, err)
	require.NotEqual(t, before, after)
	require.Equal(t, before.Manifests[len(before.Manifests)-1], after.Manifests[len(after.Manifests)-1])
}

func TestEventContainsSecretNamesAndDigestsOnly(t *testing.T) {
	t.Parallel()
	got, err := desired(newWorkspace(t, full()), agent.DefaultManifests())
	require.NoError(t, err)
	require.Equal(
		t,
		[]events.SecretReference{
			{Name: "ide-env", Digest: "d1"}, {Name: "ide-files", Digest: "d2"}, {Name: "ide-pull", Digest: "d3"},
		},
		got.Secrets,
	)
	for _, m := range got.Manifests {
		require.NotEqual(t, "Secret", m["kind"])
	}
	none, err := desired(newWorkspace(t, workspace.Spec{Image: "ide"}), agent.DefaultManifests())
	require.NoError(t, err)
	require.Empty(t, none.Secrets)
}

func TestTerminatedHasNoManifests(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, full())
	w.DesiredState = workspace.DesiredTerminated
	got, err := desired(w, agent.DefaultManifests())
	require.NoError(t, err)
	require.Equal(t, events.DesiredWorkspace{
		WorkspaceID:     w.ID.String(),
		Name:            "ide",
		Namespace:       "ws-7-ide",
		DesiredRevision: 1,
		Target:          events.DesiredTargetTerminated,
	}, got)
}

func TestLargeManifestsAreRefused(t *testing.T) {
	t.Parallel()
	spec := workspace.Spec{Image: "ide", Env: map[string]string{}}
	for i := range 10 {
		spec.Env[fmt.Sprintf("V%d", i)] = strings.Repeat("x", 30<<10)
	}
	data, err := render.Desired(newWorkspace(t, spec), agent.DefaultManifests())
	require.NoError(t, err, "a change of settings does not fail")
	err = render.CheckSize("ide", data)
	require.True(t, fault.Is(err, errcode.PayloadTooLarge), err)
	require.ErrorContains(t, err, "the limit is 262144: shorten its variables, command or arguments")
	require.NoError(t, render.CheckSize("ide", data[:render.MaxSize]))
}

// TestLargestSettingsFitIntoAMessage renders a workspace that has the largest manifests before the settings change.
func TestLargestSettingsFitIntoAMessage(t *testing.T) {
	t.Parallel()
	const headers = 16 << 10
	var peers, networks []string
	for i := range 50 {
		peer := fmt.Sprintf("n%d{agent_id}", i)
		for j := 0; ; j++ {
			label := fmt.Sprintf(":%x=", i<<8+j)
			if len(peer)+len(label) > 512 {
				break
			}
			peer += label
		}
		peers = append(peers, peer)
		networks = append(networks, fmt.Sprintf("2001:db8:ffff:ffff:ffff:ffff:ffff:ff%x/128", i+16))
	}
	configured := agent.Settings{
		IngressPeers: &peers, DNSPeers: &peers, PrivateRanges: &networks, EgressAllowed: &networks,
	}.Configuration()
	require.NoError(t, configured.Validate())
	w := newWorkspace(t, full())
	data, err := render.Desired(w, configured.Manifests)
	require.NoError(t, err)
	require.Greater(t, len(data), 100<<10)
	require.Less(t, len(data)+render.MaxSize+headers, topology.MaxMessageSize)
}

func TestInvalidSpecIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, full())
	_, err := desired(w, agent.Manifests{PrivateRanges: []string{"here"}})
	require.ErrorContains(t, err, `private range "here"`)
	_, err = desired(w, agent.Manifests{EgressAllowed: []string{"10.0.0.1"}})
	require.ErrorContains(t, err, `allowed range "10.0.0.1"`)
	w.Spec.CPU = "lots"
	_, err = desired(w, agent.DefaultManifests())
	require.ErrorContains(t, err, `cpu "lots"`)
}
