package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/replay"
)

// throughDeploys is the value of --through for the detection of rollouts.
const throughDeploys = "deploys"

// replaySubject returns the subject of the replay: the argument, or that of the detection.
func replaySubject(c *cobra.Command, args []string, through string) (string, error) {
	switch {
	case through != "" && through != throughDeploys:
		return "", fault.New(errcode.InvalidArgument, "--through %q must be %s", through, throughDeploys)
	case through != "" && len(args) == 0:
		return topology.FamilyObserved + ".>", nil
	case through != "" && !strings.HasPrefix(args[0], topology.FamilyObserved+"."):
		return "", fault.New(
			errcode.InvalidArgument,
			"--through %s reads observations: SUBJECT %q must begin with %s.",
			through,
			args[0],
			topology.FamilyObserved,
		)
	}
	if err := exactly("SUBJECT")(c, args); through == "" && err != nil {
		return "", err
	}
	return args[0], nil
}

// printDetection detects rollouts in a range of observations and prints the facts, compared with the
// published ones.
func (a *app) printDetection(ctx context.Context, opts replay.Options, rules environment.Rules) error {
	conn, err := a.nats(ctx)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	js, err := conn.JetStream()
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	cell := topology.Cell(a.client.Cell)
	d := detection.New(cell, rules)
	if err := a.loadClaims(ctx, d, js, cell); err != nil {
		return err
	}
	var detected []events.DeployFact
	left := skipped{refused: map[refusal]int{}}
	partial, begun := false, false
	// Observations before the range are read, too: they have the state at its beginning.
	from := opts
	opts.FromSequence, opts.FromTime = 0, time.Time{}
	opts.Also = decisions(opts.Subject)
	err = d.Replay(ctx, js, cell, opts, func(m *detection.Message, detect func() ([]events.DeployFact, error)) error {
		// The stream has dropped older messages.
		partial = partial || m.Number == 1 && m.Sequence > 1
		if !begun && m.Sequence >= from.FromSequence && !m.Stored.Before(from.FromTime) {
			begun = true
			d.Begin()
		}
		facts, err := detect()
		if err != nil && !left.refuses(err, begun) {
			left.malformed++
			return a.note("%s, sequence %d: %v", m.Subject, m.Sequence, err)
		}
		if begun {
			detected = append(detected, facts...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !begun {
		return a.showDetection(nil, left)
	}
	published, err := publishedFacts(ctx, js, cell, d)
	if err != nil {
		return err
	}
	return a.showDetection(detection.Compare(detected, published, partial), left)
}

// skipped counts the messages that the service would dead-letter.
type skipped struct {
	malformed int
	refused   map[refusal]int
}

// refusal is an agent that may not report a cluster.
type refusal struct {
	agent, project, owner int64
	cluster               string
}

// refuses reports whether err rejects a message, and counts it when counts is set.
func (l *skipped) refuses(err error, counts bool) bool {
	foreign, is := errors.AsType[*ownership.ForeignError](err)
	stranger, unknown := errors.AsType[ingest.UnknownAgentError](err)
	who := refusal{agent: stranger.AgentID}
	if is {
		who = refusal{
			agent:   foreign.AgentID,
			project: foreign.ProjectID,
			owner:   foreign.Claim.ProjectID,
			cluster: foreign.Claim.ClusterUID,
		}
	}
	if counts && (is || unknown) {
		l.refused[who]++
	}
	return is || unknown
}

func (l *skipped) lines() []string {
	lines := make([]string, 0, len(l.refused))
	for who, times := range l.refused {
		if who.cluster == "" {
			lines = append(lines, fmt.Sprintf("agent %d is unknown: rejected %d messages", who.agent, times))
			continue
		}
		lines = append(
			lines,
			fmt.Sprintf(
				"agent %d of project %d reported cluster %q of project %d: rejected %d messages",
				who.agent,
				who.project,
				who.cluster,
				who.owner,
				times,
			),
		)
	}
	slices.Sort(lines)
	return lines
}

// loadClaims tells the detection the projects of clusters: those of the service, or else those that
// follow from the observations and the directory.
func (a *app) loadClaims(ctx context.Context, d *detection.Detector, js jetstream.JetStream, cell topology.Cell) error {
	api, err := a.deploysAPI()
	if err == nil {
		var decided *connect.Response[deploysv1.ListClustersResponse]
		if decided, err = api.Clusters.ListClusters(
			ctx,
			connect.NewRequest(&deploysv1.ListClustersRequest{}),
		); err == nil {
			d.UseDecisions(decidedClaims(decided.Msg))
			return nil
		}
	}
	if ctx.Err() != nil {
		return fault.From(ctx.Err())
	}
	if err := a.note(
		"cannot ask the deploys service for the projects of clusters, using the streams: %s",
		fault.From(err).Message,
	); err != nil {
		return err
	}
	projects := map[int64]int64{}
	agents := replay.Options{Subject: topology.FamilyDirectory + ".agent.>"}
	err = replay.Run(ctx, js, cell, agents, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		e, err := event.Decode(msg.Headers(), msg.Data())
		if err != nil {
			return fmt.Errorf("%s, sequence %d: %w", msg.Subject(), meta.Sequence.Stream, err)
		}
		var agent events.DirectoryAgent
		if err := e.DataAs(&agent); err != nil {
			return fmt.Errorf("%s, sequence %d: %w", msg.Subject(), meta.Sequence.Stream, err)
		}
		projects[int64(agent.AgentID)] = int64(agent.ProjectID)
		return nil
	})
	d.ResolveProjects(func(agentID int64) (int64, bool) {
		project, known := projects[agentID]
		return project, known
	})
	return err
}

// decidedClaims converts the response of the service.
func decidedClaims(
	r *deploysv1.ListClustersResponse,
) (restored bool, reporters []ownership.Reporter, claims []ownership.Claim) {
	for _, reporter := range r.GetReporters() {
		reporters = append(
			reporters,
			ownership.Reporter{
				AgentID:   reporter.GetAgentId(),
				ProjectID: reporter.GetProjectId(),
				Since:     reporter.GetSinceSequence(),
			},
		)
	}
	for _, c := range r.GetClusters() {
		for _, claim := range c.GetClaims() {
			claims = append(claims, ownership.Claim{
				ClusterUID: c.GetClusterUid(),
				Since:      claim.GetSinceSequence(),
				ProjectID:  claim.GetProjectId(),
				AgentID:    claim.GetAgentId(),
				UserID:     claim.GetUserId(),
				Reason:     claim.GetReason(),
				At:         claim.GetClaimedAt().AsTime(),
			})
		}
	}
	return r.GetStreamRestored(), reporters, claims
}

// decisions returns the subjects of decisions about clusters when the subject is that of one agent.
func decisions(subject string) []string {
	agent, _, _ := strings.Cut(strings.TrimPrefix(subject, topology.FamilyObserved+"."), ".")
	if _, err := strconv.ParseInt(agent, 10, 64); err != nil {
		return nil // included in the subject
	}
	return []string{topology.FamilyObserved + "." + topology.TokenCluster + ".>"}
}

// publishedFacts returns the published facts about the range.
func publishedFacts(
	ctx context.Context,
	js jetstream.JetStream,
	cell topology.Cell,
	d *detection.Detector,
) ([]events.DeployFact, error) {
	var published []events.DeployFact
	all := replay.Options{Subject: topology.FamilyDeploy + ".>"}
	err := replay.Run(ctx, js, cell, all, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		e, err := event.Decode(msg.Headers(), msg.Data())
		if err != nil {
			return fmt.Errorf("%s, sequence %d: %w", msg.Subject(), meta.Sequence.Stream, err)
		}
		fact, err := cdevent.Read(e)
		if err != nil {
			return fmt.Errorf("%s, sequence %d: %w", msg.Subject(), meta.Sequence.Stream, err)
		}
		if d.Covers(&fact) {
			published = append(published, fact)
		}
		return nil
	})
	return published, err
}

func (a *app) showDetection(compared []detection.Compared, left skipped) error {
	counts := map[detection.Verdict]int{}
	for i := range compared {
		c := &compared[i]
		counts[c.Verdict]++
		line := detectionLine(c)
		if a.output != outputTable {
			raw, err := json.Marshal(c)
			if err != nil {
				return fmt.Errorf("print: %w", err)
			}
			line = string(raw)
		}
		if err := a.write(line + "\n"); err != nil {
			return err
		}
	}
	text := fmt.Sprintf(
		"facts: %d the same as published, %d different, %d not published, %d published but not detected",
		counts[detection.Same],
		counts[detection.Changed],
		counts[detection.Missing],
		counts[detection.Extra],
	)
	if left.malformed > 0 {
		text += fmt.Sprintf("; malformed messages: %d", left.malformed)
	}
	for _, line := range left.lines() {
		if err := a.note("%s", line); err != nil {
			return err
		}
	}
	return a.note("%s", text)
}

// detectionLine is the text output of a fact.
func detectionLine(c *detection.Compared) string {
	f := &c.Fact
	parts := []string{
		c.Verdict.Mark(),
		f.ObservedAt.Local().Format("2006-01-02 15:04:05.000"),
		"",
		f.Workload.Namespace + "/" + f.Workload.Kind + "/" + f.Workload.Name,
		"",
		string(f.Fact),
	}
	if f.Rollout != nil {
		parts = append(parts, fmt.Sprintf("revision=%d change=%s", f.Rollout.Revision, f.Rollout.Change))
	}
	if f.Environment != nil {
		parts = append(parts, "run="+f.Environment.Run)
	}
	if f.Counts != nil {
		parts = append(
			parts,
			fmt.Sprintf("pods=%d/%d available=%d", f.Counts.Updated, f.Counts.Desired, f.Counts.Available),
		)
	}
	if f.Reason != "" {
		parts = append(parts, "reason="+f.Reason)
	}
	if len(c.Fields) > 0 {
		parts = append(parts, "differs: "+strings.Join(c.Fields, ", "))
	}
	return strings.Join(parts, " ")
}
