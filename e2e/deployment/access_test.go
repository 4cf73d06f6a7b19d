package deployment_test

import (
	"bytes"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/deploy"
)

// accesses has the access of each program: program → access → the reason, if it is known.
type accesses map[string]map[string]string

func (a accesses) add(program, access string) {
	if a[program] == nil {
		a[program] = map[string]string{}
	}
	a[program][access] = ""
}

// TestProgramsHaveOnlyTheAccessThatTheyNeed compares the manifests and docker-compose.yml with docs/access.md. New
// access needs a line with its reason there.
func TestProgramsHaveOnlyTheAccessThatTheyNeed(t *testing.T) {
	t.Parallel()
	documented := readAccess(t, "docs/access.md")
	require.Len(t, documented, 2)
	t.Run("Kubernetes", func(t *testing.T) {
		t.Parallel()
		found, err := kubernetesAccess(allManifests(t))
		require.NoError(t, err)
		requireDocumented(t, documented["Kubernetes"], found)
	})
	t.Run("Docker Compose", func(t *testing.T) {
		t.Parallel()
		found, err := composeAccess(content(t, "docker-compose.yml"))
		require.NoError(t, err)
		requireDocumented(t, documented["Docker Compose"], found)
	})
}

// TestPrintedManifestGrantsWhatItsFilesGrant reads what `lockstep agent manifest` prints.
func TestPrintedManifestGrantsWhatItsFilesGrant(t *testing.T) {
	t.Parallel()
	agent := deploy.Agent{
		ID: 1, Components: deploy.Components(), ImageRepository: "lockstep", ImageTag: "latest",
		NATSPorts: []string{"4222"}, RelayPorts: []string{"443"}, RelayURLs: []string{"wss://relay.example"},
		RelayCA: "PEM", Workloads: true, Credentials: []byte("{}"),
		NamespacePrefix: "ws-",
	}
	text, err := agent.Render()
	require.NoError(t, err)
	printed, err := kubernetesAccess(split(t, []byte(text)))
	require.NoError(t, err)
	expected := readAccess(t, "docs/access.md")["Kubernetes"]
	maps.DeleteFunc(expected, func(program string, _ map[string]string) bool {
		return program != workspaceOwner && !slices.Contains(deploy.Components(), program)
	})
	requireDocumented(t, expected, printed)
}

// TestNewAccessIsFound changes the manifests and docker-compose.yml as a careless change would.
func TestNewAccessIsFound(t *testing.T) {
	t.Parallel()
	before, err := kubernetesAccess(allManifests(t))
	require.NoError(t, err)
	for _, change := range [][2]string{
		{"resources: [pods]\n", "resources: [pods, secrets]\n"},
		{"resources: [pods]\n    verbs: [list, watch]", "resources: [pods]\n    verbs: [list, watch, create]"},
		{"    resourceNames: [kube-system]\n", ""},
		{"    resourceNames: [lockstep-agent-1-workspace-owner]\n", ""},
		{"    verbs: [bind]\n", "    verbs: [bind, escalate]\n"},
		{"resources: [pods/attach, pods/exec, pods/portforward]", "resources: [pods/attach, pods/exec, secrets]"},
		{"      - lockstep:services\n", "      - lockstep:services\n      - system:masters\n"},
		{"  name: view\n", "  name: cluster-admin\n"},
		{
			"kind: RoleBinding\nmetadata:\n  name: lockstep-role-",
			"kind: ClusterRoleBinding\nmetadata:\n  name: lockstep-role-",
		},
		{"  validationActions: [Deny]\n", "  validationActions: [Audit]\n"},
		{"  failurePolicy: Fail\n", "  failurePolicy: Ignore\n"},
		{"        operations: [CREATE, UPDATE, DELETE, CONNECT]\n", "        operations: [CREATE]\n"},
		{"{secretName: agent-credentials, defaultMode: 0440}", "{secretName: other, defaultMode: 0440}"},
		{"{secretName: agent-credentials, defaultMode: 0440}", "{secretName: agent-credentials, defaultMode: 0444}"},
		{"{name: credentials, mountPath: /credentials, readOnly: true}", "{name: credentials, mountPath: /credentials}"},
		{"configMap: {name: relay-ca, optional: true}", "hostPath: {path: /}"},
		{"value: /credentials/credentials.json}", "valueFrom: {secretKeyRef: {name: other, key: token}}}"},
		{"enableServiceLinks: false", "enableServiceLinks: false\n      hostNetwork: true"},
		{"runAsUser: 65532", "runAsUser: 0"},
		{"runAsNonRoot: true", "runAsNonRoot: false"},
		{"seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: Unconfined}"},
		{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"},
		{"allowPrivilegeEscalation: false", "privileged: true"},
		{"capabilities: {drop: [ALL]}", "capabilities: {drop: [ALL], add: [NET_ADMIN]}"},
		{"{name: ops, containerPort: 8081}", "{name: ops, containerPort: 8081, hostPort: 8081}"},
		{"{name: ops, containerPort: 8081}", "{name: ops, containerPort: 8081}\n            - {containerPort: 6060}"},
		{"from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]", "from: []"},
		{"policyTypes: [Ingress, Egress]", "policyTypes: [Ingress]"},
		{"    - ports:\n        - {protocol: TCP, port: 4222} # NATS", "    - {}"},
	} {
		text := bytes.Join(allManifests(t), []byte("\n---\n"))
		after, err := kubernetesAccess(split(t, replace(t, text, change)))
		require.True(t, errors.Is(err, errUnknown) || err == nil && !sameAccess(before, after), "%q: %v", change, err)
	}

	before, err = composeAccess(content(t, "docker-compose.yml"))
	require.NoError(t, err)
	for _, change := range [][2]string{
		{"read_only: true", "read_only: false"},
		{"cap_drop: [ALL]", "cap_drop: [CHOWN]"},
		{"user: \"65532:65532\"", "user: \"0:0\""},
		{"[\"no-new-privileges:true\"]", "[\"no-new-privileges:true\", \"seccomp:unconfined\"]"},
		{"    secrets: [grafana-password]\n", "    secrets: [grafana-password, other-password]\n"},
		{"ports: [\"127.0.0.1:3000:3000\"]", "ports: [\"3000:3000\"]"},
		{"- state-keys:/data/state:ro\n", "- state-keys:/data/state\n"},
		{"- prometheus:/prometheus\n", "- prometheus:/prometheus\n      - /var/run/docker.sock:/var/run/docker.sock\n"},
		{"  network_mode: none\n", "  network_mode: host\n"},
		{"  network_mode: none\n", ""},
		{"  network_mode: service:postgres\n", "  network_mode: service:state\n"},
		{"    networks: [relay, relay-agent]\n", "    networks: [relay, relay-agent, state-postgres]\n"},
		{"    networks: [relay, relay-agent]\n", ""},
		{"  state-postgres: {internal: true}\n", "  state-postgres:\n"},
		{"  state-postgres: {internal: true}\n", "  state-postgres: {external: true}\n"},
		{"postgres://lockstep_deploys@", "postgres://lockstep_state@"},
		{"postgres://lockstep_deploys@", "postgres://lockstep@"},
		{"cap_add: [CHOWN,", "cap_add: [SYS_ADMIN, CHOWN,"},
		{"    user: \"472:0\"", "    privileged: true\n    user: \"472:0\""},
		{"    tmpfs: [/tmp]\n", "    tmpfs: [/tmp]\n    pid: host\n"},
		{"  state-keys:\n", "  state-keys: {driver_opts: {type: none, o: bind, device: /etc}}\n"},
	} {
		after, err := composeAccess(replace(t, content(t, "docker-compose.yml"), change))
		require.True(t, errors.Is(err, errUnknown) || err == nil && !sameAccess(before, after), "%q: %v", change, err)
	}
}

// replace replaces each occurrence of change[0], of which there must be one, by change[1].
func replace(t *testing.T, text []byte, change [2]string) []byte {
	t.Helper()
	require.Contains(t, string(text), change[0])
	return bytes.ReplaceAll(text, []byte(change[0]), []byte(change[1]))
}

func sameAccess(a, b accesses) bool {
	return maps.EqualFunc(a, b, maps.Equal[map[string]string, map[string]string])
}

// requireDocumented requires that a program has all documented access, and no other.
func requireDocumented(t *testing.T, documented, found accesses) {
	t.Helper()
	require.NotEmpty(t, found)
	var wrong []string
	for program, all := range found {
		for access := range all {
			if _, ok := documented[program][access]; !ok {
				wrong = append(wrong, program+" has this access, which docs/access.md does not list: "+access)
			}
		}
	}
	for program, all := range documented {
		for access := range all {
			if _, ok := found[program][access]; !ok {
				wrong = append(wrong, program+" has no such access, although docs/access.md lists it: "+access)
			}
		}
	}
	slices.Sort(wrong)
	require.Empty(t, strings.Join(wrong, "\n"))
}

// readAccess reads the tables of a page: chapter → program → access → reason.
func readAccess(t *testing.T, page string) map[string]accesses {
	t.Helper()
	found := map[string]accesses{}
	var chapter, program string
	for line := range strings.Lines(string(content(t, page))) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "## "):
			chapter = strings.TrimPrefix(line, "## ")
			found[chapter] = accesses{}
		case strings.HasPrefix(line, "### "):
			program = strings.TrimPrefix(line, "### ")
		case strings.HasPrefix(line, "| `"):
			access, reason, _ := strings.Cut(strings.TrimPrefix(line, "| `"), "` |")
			reason = strings.TrimSpace(strings.TrimSuffix(reason, "|"))
			require.NotEmpty(t, reason, "%s: %s: %s: write down why", page, program, access)
			found[chapter].add(program, access)
			found[chapter][program][access] = reason
		}
	}
	return found
}

// allManifests returns the documents of all files in deploy/kubernetes and deploy/rbac.
func allManifests(t *testing.T) [][]byte {
	t.Helper()
	var all [][]byte
	for _, file := range manifestFiles(t, "deploy/kubernetes", "deploy/rbac") {
		require.Equal(t, ".yaml", path.Ext(file))
		all = append(all, manifests(t, file)...)
	}
	return all
}
