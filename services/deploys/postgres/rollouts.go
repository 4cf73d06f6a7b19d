package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/history"
)

// Rollouts reads the history.
type Rollouts struct {
	DB Querier
}

// RolloutFilter selects rollouts. Zero fields select all.
type RolloutFilter struct {
	// Agents restricts to rollouts of these agents; nil for all.
	Agents                []int64
	IDs                   []string
	ClusterUID            string
	AgentID               int64
	Namespace, Kind, Name string
	Revision              int64
	States, Changes       []string
	Labels                map[string]string
	Commit, Group         string
	Since, Until          time.Time
	// Stuck restricts to stalled, blocked and paused rollouts.
	Stuck bool
}

// RolloutPage selects a page of the list: Size rollouts after a position.
type RolloutPage struct {
	Size  int
	After *RolloutPosition
}

// RolloutPosition is the position of a rollout in the list.
type RolloutPosition struct {
	StartedAt time.Time
	ID        string
}

// conditions are SQL conditions with their arguments.
type conditions struct {
	parts     []string
	arguments []any
}

// add adds a condition. ? stands for the argument.
func (c *conditions) add(condition string, argument any) {
	c.arguments = append(c.arguments, argument)
	c.parts = append(c.parts, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(c.arguments))))
}

func (c *conditions) String() string {
	if len(c.parts) == 0 {
		return "true"
	}
	return strings.Join(c.parts, " and ")
}

func (f RolloutFilter) conditions() *conditions {
	c := &conditions{}
	if f.Agents != nil {
		c.add(`r.agent_id = any(?)`, f.Agents)
	}
	if f.IDs != nil {
		c.add(`r.id = any(?)`, f.IDs)
	}
	for column, value := range map[string]string{
		"cluster_uid": f.ClusterUID, "namespace": f.Namespace, "kind": f.Kind, "name": f.Name, "commit_sha": f.Commit,
		"deploy_group": f.Group,
	} {
		if value != "" {
			c.add(`r.`+column+` = ?`, value)
		}
	}
	for column, value := range map[string]int64{"agent_id": f.AgentID, "revision": f.Revision} {
		if value != 0 {
			c.add(`r.`+column+` = ?`, value)
		}
	}
	if len(f.States) > 0 {
		c.add(`r.state = any(?)`, f.States)
	}
	if len(f.Changes) > 0 {
		c.add(`r.change = any(?)`, f.Changes)
	}
	if len(f.Labels) > 0 {
		c.add(`r.labels @> ?::jsonb`, f.Labels)
	}
	if !f.Since.IsZero() {
		c.add(`r.started_at >= ?`, f.Since)
	}
	if !f.Until.IsZero() {
		c.add(`r.started_at < ?`, f.Until)
	}
	if f.Stuck {
		c.parts = append(c.parts, `(r.stalled or r.blocked or r.paused)`)
	}
	return c
}

func scaleFacts() []string {
	return []string{string(events.FactScaleStarted), string(events.FactScaleCompleted)}
}

// Scalings returns the facts about scaling among those with the ids, in order for each workload.
func (s *Rollouts) Scalings(ctx context.Context, ids []string) ([]events.DeployFact, error) {
	rows, err := s.DB.Query(ctx,
		`select data from facts where id = any($1) and fact = any($2) order by workload, sequence`, ids, scaleFacts())
	if err != nil {
		return nil, fmt.Errorf("read facts about scaling: %w", err)
	}
	facts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (events.DeployFact, error) {
		var raw []byte
		var f events.DeployFact
		if err := row.Scan(&raw); err != nil {
			return f, err //nolint:wrapcheck // wrapped below
		}
		return f, json.Unmarshal(raw, &f)
	})
	if err != nil {
		return nil, fmt.Errorf("read facts about scaling: %w", err)
	}
	return facts, nil
}

// SelectsScaling reports whether the filter selects a fact about scaling.
func (f RolloutFilter) SelectsScaling(fact *events.DeployFact) bool {
	if len(f.IDs)+len(f.States)+len(f.Changes) > 0 || f.Commit != "" || f.Group != "" || f.Stuck ||
		!f.Since.IsZero() || !f.Until.IsZero() {
		return false
	}
	w := &fact.Workload
	for label, value := range f.Labels {
		if w.Labels[label] != value {
			return false
		}
	}
	return (f.Agents == nil || slices.Contains(f.Agents, int64(w.AgentID))) &&
		(f.AgentID == 0 || f.AgentID == int64(w.AgentID)) && (f.ClusterUID == "" || f.ClusterUID == w.ClusterUID) &&
		(f.Namespace == "" || f.Namespace == w.Namespace) && (f.Kind == "" || f.Kind == w.Kind) &&
		(f.Name == "" || f.Name == w.Name)
}

// List returns a page of rollouts, the newest start first.
func (s *Rollouts) List(ctx context.Context, f RolloutFilter, page RolloutPage) ([]history.Rollout, error) {
	c := f.conditions()
	if page.After != nil {
		c.add(`r.started_at <= ?`, page.After.StartedAt)
		c.arguments = append(c.arguments, page.After.ID)
		c.parts = append(c.parts, fmt.Sprintf(`(r.started_at, r.id) < ($%d, $%d)`, len(c.arguments)-1, len(c.arguments)))
	}
	c.arguments = append(c.arguments, page.Size)
	rows, err := s.DB.Query(ctx,
		`select row_to_json(r), exists (
			select 1 from workloads w where w.id = r.workload and not w.present and w.state::jsonb -> 'gone' = 'true')
		from rollouts r where `+c.String()+
			fmt.Sprintf(` order by r.started_at desc, r.id desc limit $%d`, len(c.arguments)), c.arguments...)
	if err != nil {
		return nil, fmt.Errorf("list rollouts: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (history.Rollout, error) {
		var raw []byte
		var r history.Rollout
		if err := row.Scan(&raw, &r.WorkloadDeleted); err != nil {
			return r, err //nolint:wrapcheck // wrapped below
		}
		return r, json.Unmarshal(raw, &r)
	})
	if err != nil {
		return nil, fmt.Errorf("list rollouts: %w", err)
	}
	return found, nil
}

// Facts returns up to limit facts of a rollout in order, and the number of omitted facts. If it omits facts, it returns
// the first one and the last ones.
func (s *Rollouts) Facts(ctx context.Context, r *history.Rollout, limit int) (facts []Fact, omitted int64, err error) {
	workload, err := uuid.Parse(r.Workload)
	if err != nil {
		return nil, 0, fmt.Errorf("read the facts of rollout %s: %w", r.ID, err)
	}
	first := int64(0)
	if r.FirstSequence != nil {
		first = *r.FirstSequence
	}
	const ofRollout = `workload = $1 and sequence between $2 and $3 and rollout_id = $4 order by sequence `
	facts, err = (&Store{}).facts(ctx, s.DB, ofRollout+`desc limit $5`, workload, first, r.LastSequence, r.ID, limit)
	if err != nil {
		return nil, 0, err
	}
	slices.Reverse(facts)
	if len(facts) < limit {
		return facts, 0, nil
	}
	oldest, err := (&Store{}).facts(ctx, s.DB, ofRollout+`limit 1`, workload, first, r.LastSequence, r.ID)
	if err != nil {
		return nil, 0, err
	}
	var all int64
	err = s.DB.QueryRow(ctx,
		`select count(*) from facts where workload = $1 and sequence between $2 and $3 and rollout_id = $4`, workload,
		first, r.LastSequence, r.ID).Scan(&all)
	if err != nil {
		return nil, 0, fmt.Errorf("count the facts of rollout %s: %w", r.ID, err)
	}
	if len(oldest) == 1 && oldest[0].ID != facts[0].ID {
		facts[0] = oldest[0]
	}
	return facts, max(0, all-int64(len(facts))), nil
}
