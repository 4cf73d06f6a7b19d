package topology

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Root is the first token of every subject.
const Root = "lockstep"

// RevisionHeader is the header of what a service tells of things it owns: a decimal number that
// grows with each message of a subject, whatever becomes of the stream or of the service's
// database.
const RevisionHeader = "Lockstep-Revision"

// Families of subjects: the token after the cell.
const (
	FamilyObserved   = "observed"
	FamilyDesired    = "desired"
	FamilyDesiredLog = "desired_log"
	FamilyApplied    = "applied"
	FamilyControl    = "control"
	FamilyWorkspace  = "workspace"
	FamilyDeploy     = "deploy"
	FamilySink       = "sink"
	FamilyDeployLive = "deploy_live"
	FamilyAgent      = "agent"
	FamilyDirectory  = "directory"
	FamilyDead       = "dead"
	FamilySecret     = "secret"
)

// TokenWorkload follows the agent in the subjects of workloads whose rollouts are followed: other
// than those of workspaces, so that nobody need read both.
const TokenWorkload = "workload"

// TokenCluster stands where other subjects of observations have their agent, in those of what is
// decided about a whole cluster: no agent can write there.
const TokenCluster = "cluster"

// Cell builds the subjects of one cell: one NATS system and one PostgreSQL. It is a DNS label, see
// [ValidateCell].
type Cell string

// ValidateCell says what is wrong with a cell's name, or nil.
func ValidateCell(name string) error {
	if name == "" || len(name) > 63 || name[0] == '-' || name[len(name)-1] == '-' {
		return fmt.Errorf("cell %q: must be a DNS label of 1 to 63 characters", name)
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return fmt.Errorf("cell %q: must be a DNS label: only a-z, 0-9 and -", name)
		}
	}
	return nil
}

// Prefix is lockstep.<cell>.<family>.
func (c Cell) Prefix(family string) string { return Root + "." + string(c) + "." + family }

// All matches every subject of a family.
func (c Cell) All(family string) string { return c.Prefix(family) + ".>" }

// Observed is the subject of observations of one object. Pods and ReplicaSets travel under their
// owner's subject. A cluster-scoped object has namespace "".
func (c Cell) Observed(agent int64, kind, namespace, name string) string {
	return c.agent(FamilyObserved, agent) + "." + Escape(kind) + "." + namespaceToken(namespace) + "." + Escape(name)
}

// ObservedWorkload is the subject of observations of one workload whose rollouts are followed, and
// of what keeps its revisions.
func (c Cell) ObservedWorkload(agent int64, kind, namespace, name string) string {
	return c.agent(FamilyObserved, agent) + "." + TokenWorkload + "." + Escape(
		kind,
	) + "." + namespaceToken(
		namespace,
	) + "." + Escape(
		name,
	)
}

// ObservedResync is the subject of an agent's resync begins and ends.
func (c Cell) ObservedResync(agent int64) string { return c.agent(FamilyObserved, agent) + ".resync" }

// ObservedTick is the subject of an agent's ticks.
func (c Cell) ObservedTick(agent int64) string { return c.agent(FamilyObserved, agent) + ".tick" }

// ObservedRejected is the subject of what an agent could not observe.
func (c Cell) ObservedRejected(agent int64) string {
	return c.agent(FamilyObserved, agent) + ".rejected"
}

// ObservedClusterReleased is the subject of releases of a cluster, which the service deploys
// writes.
func (c Cell) ObservedClusterReleased(cluster string) string {
	return c.Prefix(FamilyObserved) + "." + TokenCluster + "." + Escape(cluster) + ".released"
}

// ObservedClusters matches everything that is decided about whole clusters.
func (c Cell) ObservedClusters() string { return c.Prefix(FamilyObserved) + "." + TokenCluster + ".>" }

// ObservedAgent matches everything one agent observes.
func (c Cell) ObservedAgent(agent int64) string { return c.agent(FamilyObserved, agent) + ".>" }

// Desired is the subject of one workspace's desired truth.
func (c Cell) Desired(agent int64, workspace string) string {
	return c.agent(FamilyDesired, agent) + "." + Escape(workspace)
}

// DesiredLog is the subject of the history of one workspace's desired truth.
func (c Cell) DesiredLog(agent int64, workspace string) string {
	return c.agent(FamilyDesiredLog, agent) + "." + Escape(workspace)
}

// DesiredAgent matches the desired truth of every workspace of one agent.
func (c Cell) DesiredAgent(agent int64) string { return c.agent(FamilyDesired, agent) + ".*" }

// Applied is the subject of what became of one workspace's desired revisions.
func (c Cell) Applied(agent int64, workspace string) string {
	return c.agent(FamilyApplied, agent) + "." + Escape(workspace)
}

// AppliedAgent matches everything one agent's dispatcher reports.
func (c Cell) AppliedAgent(agent int64) string { return c.agent(FamilyApplied, agent) + ".*" }

// ControlConfig is the subject of an agent's configuration.
func (c Cell) ControlConfig(agent int64) string { return c.agent(FamilyControl, agent) + ".config" }

// ControlResync is the subject on which an agent is asked for a full resync.
func (c Cell) ControlResync(agent int64) string { return c.agent(FamilyControl, agent) + ".resync" }

// ControlAgent matches everything said to one agent.
func (c Cell) ControlAgent(agent int64) string { return c.agent(FamilyControl, agent) + ".*" }

// Secret is the request subject for the sealed secret values of one workspace. It is no stream's.
func (c Cell) Secret(agent int64, workspace string) string {
	return c.agent(FamilySecret, agent) + "." + Escape(workspace)
}

// Workspace is the subject of one kind of event of one workspace, such as state_changed.
func (c Cell) Workspace(project int64, workspace, event string) string {
	return c.Prefix(FamilyWorkspace) + "." + strconv.FormatInt(project, 10) + "." + Escape(workspace) + "." + Escape(event)
}

// WorkspaceAll matches every event of one workspace.
func (c Cell) WorkspaceAll(project int64, workspace string) string {
	return c.Prefix(FamilyWorkspace) + "." + strconv.FormatInt(project, 10) + "." + Escape(workspace) + ".*"
}

// Deploy is the subject of one kind of fact, such as completed, about one workload of a cluster.
func (c Cell) Deploy(cluster, namespace, kind, name, fact string) string {
	return c.deploy(cluster, namespace, kind, name) + "." + Escape(fact)
}

// DeployAll matches every fact about one workload of a cluster.
func (c Cell) DeployAll(cluster, namespace, kind, name string) string {
	return c.deploy(cluster, namespace, kind, name) + ".*"
}

// Sink is where a fact about a deploy is put that one sink shall deliver again: the subject of the
// fact below sink.<name>.
func (c Cell) Sink(name, subject string) string {
	return c.Prefix(FamilySink) + "." + Escape(name) + "." + strings.TrimPrefix(subject, Root+"."+string(c)+".")
}

// SinkAll matches all that one sink shall deliver again.
func (c Cell) SinkAll(name string) string { return c.Prefix(FamilySink) + "." + Escape(name) + ".>" }

func (c Cell) deploy(cluster, namespace, kind, name string) string {
	return c.Prefix(
		FamilyDeploy,
	) + "." + Escape(
		cluster,
	) + "." + namespaceToken(
		namespace,
	) + "." + Escape(
		kind,
	) + "." + Escape(
		name,
	)
}

// AgentConnected is the subject of what says that a replica of an agent has connected to a relay.
func (c Cell) AgentConnected(agent int64) string { return c.agent(FamilyAgent, agent) + ".connected" }

// AgentDisconnected is the subject of what says that it is connected no more.
func (c Cell) AgentDisconnected(agent int64) string {
	return c.agent(FamilyAgent, agent) + ".disconnected"
}

// AgentRequests is the subject of who asked what of an agent through relays.
func (c Cell) AgentRequests(agent int64) string { return c.agent(FamilyAgent, agent) + ".requests" }

// ControlConfigs matches the configuration of every agent.
func (c Cell) ControlConfigs() string { return c.Prefix(FamilyControl) + ".*.config" }

// Directory is the subject of one entry of the directory, such as kind "user".
func (c Cell) Directory(kind, id string) string {
	return c.Prefix(FamilyDirectory) + "." + Escape(kind) + "." + Escape(id)
}

// Dead is where a service puts a message that it cannot process: the original subject below
// dead.<service>.
func (c Cell) Dead(service, subject string) string {
	return c.Prefix(FamilyDead) + "." + Escape(service) + "." + strings.TrimPrefix(subject, Root+"."+string(c)+".")
}

func (c Cell) agent(family string, agent int64) string {
	return c.Prefix(family) + "." + strconv.FormatInt(agent, 10)
}

func namespaceToken(namespace string) string {
	if namespace == "" {
		return "_"
	}
	return Escape(namespace)
}

// Subject is a subject taken apart. Tokens are unescaped and follow the family.
type Subject struct {
	Cell   Cell
	Family string
	Tokens []string
}

// Parse takes a subject apart. It refuses what no [Cell] could have built, wildcards included.
func Parse(subject string) (Subject, error) {
	parts := strings.Split(subject, ".")
	if len(parts) < 4 || parts[0] != Root {
		return Subject{}, fmt.Errorf("subject %q: is not lockstep.<cell>.<family>.<key>", subject)
	}
	if err := ValidateCell(parts[1]); err != nil {
		return Subject{}, fmt.Errorf("subject %q: %w", subject, err)
	}
	tokens := make([]string, len(parts)-3)
	for i, part := range parts[3:] {
		token, err := Unescape(part)
		if err != nil {
			return Subject{}, fmt.Errorf("subject %q: %w", subject, err)
		}
		tokens[i] = token
	}
	return Subject{Cell: Cell(parts[1]), Family: parts[2], Tokens: tokens}, nil
}

// Agent is the agent whose subject it is: the first key token of observed, desired, applied,
// control, secret and agent subjects. This token, and nothing a message says, is an agent's
// identity, since the server lets each agent publish below its own only.
func (s Subject) Agent() (int64, error) {
	switch s.Family {
	case FamilyObserved, FamilyDesired, FamilyDesiredLog, FamilyApplied, FamilyControl, FamilySecret, FamilyAgent:
	default:
		return 0, fmt.Errorf("family %q: its subjects belong to no agent", s.Family)
	}
	id, err := strconv.ParseInt(s.Tokens[0], 10, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 10) != s.Tokens[0] {
		return 0, fmt.Errorf("agent %q: is not a positive decimal id", s.Tokens[0])
	}
	return id, nil
}

const upperHex = "0123456789ABCDEF"

// Escape makes any string one subject token: dots, wildcards, percent signs, spaces, control
// characters and bytes that are no valid UTF-8 become %XX. Ordinary Kubernetes names without dots
// are unchanged. An empty string becomes "%".
func Escape(token string) string {
	if token == "" {
		return "%"
	}
	clean := true
	for i := 0; i < len(token) && clean; i++ {
		clean = token[i] > ' ' && token[i] < 0x7f && !special(token[i])
	}
	if clean {
		return token
	}
	var b strings.Builder
	for i := 0; i < len(token); {
		r, size := utf8.DecodeRuneInString(token[i:])
		if r != utf8.RuneError && r > 0x9f || size == 1 && r > ' ' && r < 0x7f && !special(token[i]) {
			b.WriteString(token[i : i+size])
		} else {
			for _, c := range []byte(token[i : i+size]) {
				b.WriteByte('%')
				b.WriteByte(upperHex[c>>4])
				b.WriteByte(upperHex[c&15])
			}
		}
		i += size
	}
	return b.String()
}

func special(c byte) bool { return c == '.' || c == '*' || c == '>' || c == '%' }

// Unescape undoes [Escape]. It refuses what Escape cannot have made, so that every string has one
// spelling.
func Unescape(token string) (string, error) {
	if token == "%" {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] != '%' {
			b.WriteByte(token[i])
			continue
		}
		if i+2 >= len(token) {
			return "", fmt.Errorf("token %q: truncated escape", token)
		}
		high, low := strings.IndexByte(upperHex, token[i+1]), strings.IndexByte(upperHex, token[i+2])
		if high < 0 || low < 0 {
			return "", fmt.Errorf("token %q: bad escape %q", token, token[i:i+3])
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	if Escape(b.String()) != token {
		return "", fmt.Errorf("token %q: is not in its one escaped form", token)
	}
	return b.String(), nil
}
