package topology

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Root is the first token of every subject.
const Root = "lockstep"

// RevisionHeader is the header with a message's revision: a decimal number that increases per subject, even after a
// restore of the stream or of the service's database. It is not the desired revision of a workspace.
const RevisionHeader = "Lockstep-Revision"

// Families of subjects: the token after the cell.
const (
	FamilyObserved      = "observed"
	FamilyDesired       = "desired"
	FamilyDesiredLog    = "desired_log"
	FamilyApplied       = "applied"
	FamilyControl       = "control"
	FamilyControlLive   = "control_live"
	FamilyWorkspace     = "workspace"
	FamilyDeploy        = "deploy"
	FamilySink          = "sink"
	FamilyDeployLive    = "deploy_live"
	FamilyJob           = "job"
	FamilyJobLive       = "job_live"
	FamilyAdmission     = "admission"
	FamilyAdmissionLive = "admission_live"
	FamilyRunner        = "runner"
	FamilyRunnerLive    = "runner_live"
	FamilyAgent         = "agent"
	FamilyAudit         = "audit"
	FamilyDirectory     = "directory"
	FamilyDirectoryLive = "directory_live"
	FamilyAccess        = "access"
	FamilyAccessLive    = "access_live"
	FamilyActivity      = "activity"
	FamilyDead          = "dead"
	FamilySecret        = "secret"
	FamilyConsumer      = "consumer"
)

// TokenWorkload follows the agent id in the subjects of tracked workloads, so that consumers can tell them from the
// objects of workspaces.
const TokenWorkload = "workload"

// TokenCluster replaces the agent id in the subjects of events about whole clusters. No agent may publish there.
const TokenCluster = "cluster"

// Cell builds the subjects of one cell: one NATS system and one PostgreSQL. It is a DNS label, see
// [ValidateCell].
type Cell string

// ValidateCell returns an error if the cell name is not a DNS label.
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

// Observed is the subject of observations of one object. The pods and ReplicaSets of a workspace use the
// subject of their Deployment. A cluster-scoped object has namespace "".
func (c Cell) Observed(agent int64, kind, namespace, name string) string {
	return c.agent(FamilyObserved, agent) + "." + Escape(kind) + "." + namespaceToken(namespace) + "." + Escape(name)
}

// ObservedWorkload is the subject of observations of one tracked workload and of its ReplicaSets or
// ControllerRevisions.
func (c Cell) ObservedWorkload(agent int64, kind, namespace, name string) string {
	workload := Escape(kind) + "." + namespaceToken(namespace) + "." + Escape(name)
	return c.agent(FamilyObserved, agent) + "." + TokenWorkload + "." + workload
}

// ObservedResync is the subject of an agent's resync_begun and resync_ended events.
func (c Cell) ObservedResync(agent int64) string { return c.agent(FamilyObserved, agent) + ".resync" }

// ObservedMembers is the subject of members of an agent's full resyncs, many in one message.
func (c Cell) ObservedMembers(agent int64) string { return c.agent(FamilyObserved, agent) + ".members" }

// ObservedTick is the subject of an agent's ticks.
func (c Cell) ObservedTick(agent int64) string { return c.agent(FamilyObserved, agent) + ".tick" }

// ObservedRejected is the subject of objects that a watcher could not report.
func (c Cell) ObservedRejected(agent int64) string {
	return c.agent(FamilyObserved, agent) + ".rejected"
}

// ObservedPatterns returns the patterns of all subjects under which an agent observes. agent is its id, or * for all
// agents. Their number of tokens is fixed, so an agent cannot publish under longer subjects.
func (c Cell) ObservedPatterns(agent string) []string {
	prefix := c.Prefix(FamilyObserved) + "." + agent
	return []string{
		prefix + ".*.*.*",
		prefix + "." + TokenWorkload + ".*.*.*",
		prefix + ".resync",
		prefix + ".members",
		prefix + ".tick",
		prefix + ".rejected",
	}
}

// ObservedClusterReleased is the subject of releases of a cluster, which the service deploys
// writes.
func (c Cell) ObservedClusterReleased(cluster string) string {
	return c.Prefix(FamilyObserved) + "." + TokenCluster + "." + Escape(cluster) + ".released"
}

// ObservedClusters matches all events about whole clusters.
func (c Cell) ObservedClusters() string { return c.Prefix(FamilyObserved) + "." + TokenCluster + ".>" }

// ObservedAgent matches everything one agent observes.
func (c Cell) ObservedAgent(agent int64) string { return c.agent(FamilyObserved, agent) + ".>" }

// Desired is the subject of one workspace's desired state.
func (c Cell) Desired(agent int64, workspace string) string {
	return c.agent(FamilyDesired, agent) + "." + Escape(workspace)
}

// DesiredLog is the subject of the history of one workspace's desired state.
func (c Cell) DesiredLog(agent int64, workspace string) string {
	return c.agent(FamilyDesiredLog, agent) + "." + Escape(workspace)
}

// DesiredAgent matches the desired state of every workspace of one agent.
func (c Cell) DesiredAgent(agent int64) string { return c.agent(FamilyDesired, agent) + ".*" }

// Applied is the subject of one workspace's apply results.
func (c Cell) Applied(agent int64, workspace string) string {
	return c.agent(FamilyApplied, agent) + "." + Escape(workspace)
}

// AppliedAgent matches everything one agent's dispatcher reports.
func (c Cell) AppliedAgent(agent int64) string { return c.agent(FamilyApplied, agent) + ".*" }

// ControlConfig is the subject of an agent's configuration.
func (c Cell) ControlConfig(agent int64) string { return c.agent(FamilyControl, agent) + ".config" }

// ControlResync is the subject of resync requests to an agent.
func (c Cell) ControlResync(agent int64) string { return c.agent(FamilyControl, agent) + ".resync" }

// ControlRead is the subject on which the state service reports to an agent how far it has processed OBSERVED.
func (c Cell) ControlRead(agent int64) string { return c.agent(FamilyControl, agent) + ".read" }

// HeaderReportRead is the NATS header of an observation that asks for a report on [Cell.ControlRead]. Its value is 1.
const HeaderReportRead = "Lockstep-Report-Read"

// ControlAgent matches all control messages of one agent.
func (c Cell) ControlAgent(agent int64) string { return c.agent(FamilyControl, agent) + ".*" }

// Secret is the request subject for the sealed secret values of one workspace. No stream stores it.
func (c Cell) Secret(agent int64, workspace string) string {
	return c.agent(FamilySecret, agent) + "." + Escape(workspace)
}

// ConsumerRequests is the subject on which a service requests consumers from the state service. No stream stores it.
func (c Cell) ConsumerRequests(service string) string {
	return c.Prefix(FamilyConsumer) + "." + Escape(service)
}

// Workspace is the subject of one kind of event of one workspace, such as state_changed.
func (c Cell) Workspace(project int64, workspace, event string) string {
	return c.Prefix(FamilyWorkspace) + "." + strconv.FormatInt(project, 10) + "." + Escape(workspace) + "." + Escape(event)
}

// WorkspaceAll matches every event of one workspace.
func (c Cell) WorkspaceAll(project int64, workspace string) string {
	return c.Prefix(FamilyWorkspace) + "." + strconv.FormatInt(project, 10) + "." + Escape(workspace) + ".*"
}

// OrderingKey is a regular expression whose group matches the id of the workspace or the agent in the subjects of its
// events.
func (c Cell) OrderingKey() string {
	return "^" + regexp.QuoteMeta(c.Prefix("")) + `(?:` + FamilyWorkspace + `[.][^.]+|` + FamilyAgent + `)[.]([^.]+)[.]`
}

// Deploy is the subject of one kind of fact, such as completed, about one workload of a cluster.
func (c Cell) Deploy(cluster, namespace, kind, name, fact string) string {
	return c.deploy(cluster, namespace, kind, name) + "." + Escape(fact)
}

// DeployAll matches every fact about one workload of a cluster.
func (c Cell) DeployAll(cluster, namespace, kind, name string) string {
	return c.deploy(cluster, namespace, kind, name) + ".*"
}

// Sink is the subject of a redelivery request: sink.<name> followed by the fact's subject.
func (c Cell) Sink(name, subject string) string {
	return c.Prefix(FamilySink) + "." + Escape(name) + "." + strings.TrimPrefix(subject, Root+"."+string(c)+".")
}

// SinkAll matches all redelivery requests of one sink.
func (c Cell) SinkAll(name string) string { return c.Prefix(FamilySink) + "." + Escape(name) + ".>" }

func (c Cell) deploy(cluster, namespace, kind, name string) string {
	workload := Escape(kind) + "." + Escape(name)
	return c.Prefix(FamilyDeploy) + "." + Escape(cluster) + "." + namespaceToken(namespace) + "." + workload
}

// Job is the subject of one kind of event of one CI job, such as pending.
func (c Cell) Job(project, job int64, event string) string {
	return c.job(FamilyJob, project, job) + "." + Escape(event)
}

// JobAll matches every event of one CI job.
func (c Cell) JobAll(project, job int64) string { return c.job(FamilyJob, project, job) + ".*" }

// Admission is the subject of one kind of event about the admission of one CI job, such as decided.
func (c Cell) Admission(project, job int64, event string) string {
	return c.job(FamilyAdmission, project, job) + "." + Escape(event)
}

// AdmissionAll matches every event about the admission of one CI job.
func (c Cell) AdmissionAll(project, job int64) string {
	return c.job(FamilyAdmission, project, job) + ".*"
}

func (c Cell) job(family string, project, job int64) string {
	return c.Prefix(family) + "." + strconv.FormatInt(project, 10) + "." + strconv.FormatInt(job, 10)
}

// Runner is the subject of one runner of CI jobs.
func (c Cell) Runner(runner int64) string {
	return c.Prefix(FamilyRunner) + "." + strconv.FormatInt(runner, 10)
}

// AgentConnected is the subject of connected events of an agent.
func (c Cell) AgentConnected(agent int64) string { return c.agent(FamilyAgent, agent) + ".connected" }

// AgentDisconnected is the subject of disconnected events of an agent.
func (c Cell) AgentDisconnected(agent int64) string {
	return c.agent(FamilyAgent, agent) + ".disconnected"
}

// AgentBlocked is the subject of blocked events of an agent.
func (c Cell) AgentBlocked(agent int64) string { return c.agent(FamilyAgent, agent) + ".blocked" }

// AgentSilent is the subject of silent events of an agent.
func (c Cell) AgentSilent(agent int64) string { return c.agent(FamilyAgent, agent) + ".silent" }

// AgentReturned is the subject of returned events of an agent.
func (c Cell) AgentReturned(agent int64) string { return c.agent(FamilyAgent, agent) + ".returned" }

// AgentRequests is the subject of audit records that relays published before the stream AUDIT existed.
func (c Cell) AgentRequests(agent int64) string { return c.agent(FamilyAgent, agent) + ".requests" }

// AuditRequests is the subject of audit records of requests to an agent.
func (c Cell) AuditRequests(agent int64) string { return c.agent(FamilyAudit, agent) + ".requests" }

// ControlConfigs matches the configuration of every agent.
func (c Cell) ControlConfigs() string { return c.Prefix(FamilyControl) + ".*.config" }

// ControlConfigsLive matches the subjects to which the server republishes them.
func (c Cell) ControlConfigsLive() string { return c.Prefix(FamilyControlLive) + ".*.config" }

// Directory is the subject of one entry of the directory, such as kind "user".
func (c Cell) Directory(kind, id string) string {
	return c.Prefix(FamilyDirectory) + "." + Escape(kind) + "." + Escape(id)
}

// AccessWorkspace is the subject of what the gateway knows of one workspace.
func (c Cell) AccessWorkspace(workspace string) string {
	return c.Prefix(FamilyAccess) + ".workspace." + Escape(workspace)
}

// AccessSSHKey is the subject of a public key that a person has registered.
func (c Cell) AccessSSHKey(fingerprint string) string {
	return c.Prefix(FamilyAccess) + ".ssh_key." + Escape(fingerprint)
}

// AccessSSHKeys is the beginning of the subjects of all SSH keys.
func (c Cell) AccessSSHKeys() string { return c.Prefix(FamilyAccess) + ".ssh_key." }

// Activity is the subject of what people do in one workspace.
func (c Cell) Activity(workspace string) string {
	return c.Prefix(FamilyActivity) + "." + Escape(workspace)
}

// Dead is the subject of a dead letter: dead.<service> followed by the original subject.
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

// Subject is a parsed subject. Tokens are unescaped and follow the family.
type Subject struct {
	Cell   Cell
	Family string
	Tokens []string
}

// Parse parses a subject. It rejects subjects that [Cell] cannot build, including wildcards.
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

// Agent returns the agent id: the first key token of observed, desired, applied, control, secret, agent and audit
// subjects. Only this token identifies the agent, because the server allows each agent only its own subjects.
func (s Subject) Agent() (int64, error) {
	switch s.Family {
	case FamilyObserved, FamilyDesired, FamilyDesiredLog, FamilyApplied, FamilyControl, FamilySecret, FamilyAgent,
		FamilyAudit:
	default:
		return 0, fmt.Errorf("subjects of family %q have no agent", s.Family)
	}
	id, err := strconv.ParseInt(s.Tokens[0], 10, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 10) != s.Tokens[0] {
		return 0, fmt.Errorf("agent %q: is not a positive decimal id", s.Tokens[0])
	}
	return id, nil
}

const upperHex = "0123456789ABCDEF"

// Escape encodes a string as one subject token: dots, wildcards, percent signs, spaces, control characters and
// bytes that are not valid UTF-8 become %XX. Ordinary Kubernetes names without dots are unchanged. An empty string
// becomes "%".
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

// Unescape decodes a token. It rejects non-canonical encodings.
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
		return "", fmt.Errorf("token %q: not in canonical escaped form", token)
	}
	return b.String(), nil
}
