package cli

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/tools/board"
	"lockstep.internal/tools/client"
)

func (a *app) deploys() *cobra.Command {
	c := group("deploys", "Show rollouts of workloads, their sinks and their clusters", a.deploysList(), a.deploysGet(),
		a.deploysWatch(), a.deploysStats(), a.deploysSinks(), a.deploysBackfill(), a.deploysResend(), a.deploysClusters())
	c.Aliases = []string{"deploy"}
	return c
}

// deploysAPI returns a client of the deploys service. Its access tokens come from the state service.
func (a *app) deploysAPI() (*client.Deploys, error) {
	if a.client.DeploysServer == "" {
		return nil, fault.New(
			errcode.InvalidArgument,
			"no deploys service is configured: start one with `lockstep up`, or set --deploys-server, "+
				"LOCKSTEP_DEPLOYS_SERVER or deploys_server in %s",
			a.missingOrNot(),
		)
	}
	api, err := a.api()
	if err != nil {
		return nil, err
	}
	return api.Deploys(http.DefaultClient, a.client.DeploysServer), nil
}

// rolloutFilter are the flags that select rollouts.
type rolloutFilter struct {
	message      deploysv1.RolloutFilter
	agent        string
	states       []string
	changes      []string
	since, until string
}

// flags adds the flags. With past it adds those that select ended rollouts.
func (f *rolloutFilter) flags(a *app, c *cobra.Command, past bool) {
	flags := c.Flags()
	flags.StringVarP(&f.message.Namespace, "namespace", "n", "", "only workloads in this namespace")
	flags.StringVar(&f.message.Kind, "kind", "", "only this kind: deployment, statefulset or daemonset")
	flags.StringVar(&f.message.Name, "name", "", "only workloads with this name")
	flags.StringVar(&f.message.ClusterUid, "cluster", "", "only this cluster: the UID of its namespace kube-system")
	a.agentFlag(c, &f.agent, "only the cluster of this agent")
	flags.StringToStringVarP(&f.message.Labels, "label", "l", nil,
		"only workloads with these labels, such as app=web,tier=front")
	flags.StringVar(&f.message.Commit, "commit", "", "only this commit")
	flags.StringVar(&f.message.Group, "group", "", "only this environment")
	flags.StringArrayVar(&f.changes, "change", nil,
		"only this change: created, updated, rolled_back or restarted; can be repeated")
	_ = c.RegisterFlagCompletionFunc("kind",
		cobra.FixedCompletions([]string{"deployment", "statefulset", "daemonset"}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("change", cobra.FixedCompletions(
		[]string{"created", "updated", "rolled_back", "restarted"}, cobra.ShellCompDirectiveNoFileComp))
	if !past {
		return
	}
	flags.StringArrayVar(&f.states, "state", nil,
		"only this state: running, completed, superseded, cancelled or unknown; can be repeated")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(
		[]string{"running", "completed", "superseded", "cancelled", "unknown"}, cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVar(&f.message.Stuck, "stuck", false, "only stalled, blocked and paused rollouts")
	flags.StringVar(&f.since, "since", "",
		"only rollouts that started at or after this time, or within this duration such as 2h or 7d")
	flags.StringVar(&f.until, "until", "", "only rollouts that started before this time or duration ago")
}

// read returns the filter of the flags and of a workload in args.
func (f *rolloutFilter) read(args []string, now time.Time) (*deploysv1.RolloutFilter, error) {
	if len(args) > 0 {
		w, err := workloadOf(args[0])
		if err != nil {
			return nil, err
		}
		f.message.Namespace, f.message.Kind, f.message.Name = w.GetNamespace(), w.GetKind(), w.GetName()
	}
	for _, name := range f.states {
		value, known := deploysv1.RolloutState_value["ROLLOUT_STATE_"+strings.ToUpper(name)]
		if !known || value == 0 {
			return nil, fault.New(errcode.InvalidArgument,
				"--state %q must be running, completed, superseded, cancelled or unknown", name)
		}
		f.message.States = append(f.message.States, deploysv1.RolloutState(value))
	}
	for _, name := range f.changes {
		value, known := deploysv1.Change_value["CHANGE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]
		if !known || value == 0 {
			return nil, fault.New(errcode.InvalidArgument, "--change %q must be created, updated, rolled_back or restarted",
				name)
		}
		f.message.Changes = append(f.message.Changes, deploysv1.Change(value))
	}
	for _, at := range []struct {
		flag, value string
		to          **timestamppb.Timestamp
	}{{"--since", f.since, &f.message.Since}, {"--until", f.until, &f.message.Until}} {
		t, err := parseTime(at.flag, at.value, now)
		if err != nil {
			return nil, err
		}
		if !t.IsZero() {
			*at.to = timestamppb.New(t)
		}
	}
	return &f.message, nil
}

// resolve finds the agent by its name.
func (f *rolloutFilter) resolve(ctx context.Context, a *app) error {
	if f.agent == "" {
		return nil
	}
	names, err := a.namesOfAPI(ctx)
	if err != nil {
		return err
	}
	f.message.AgentId, err = names.agentID(f.agent)
	return err
}

// workloadOf parses NAMESPACE/KIND/NAME, or NAMESPACE/NAME of a Deployment.
func workloadOf(text string) (*deploysv1.Workload, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 {
		parts = []string{parts[0], "deployment", parts[1]}
	}
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return nil, fault.New(errcode.InvalidArgument,
			"workload %q must be NAMESPACE/KIND/NAME, such as shop/statefulset/db, or NAMESPACE/NAME of a Deployment", text)
	}
	return &deploysv1.Workload{Namespace: parts[0], Kind: strings.ToLower(parts[1]), Name: parts[2]}, nil
}

func (a *app) deploysList() *cobra.Command {
	var filter rolloutFilter
	var limit int
	c := &cobra.Command{
		Use: "list [WORKLOAD]", Short: "List rollouts, newest first", Args: atMost("WORKLOAD"),
		ValidArgsFunction: a.completeWorkloads,
		Long: "List rollouts, newest first. WORKLOAD is NAMESPACE/KIND/NAME, or NAMESPACE/NAME of a Deployment.\n" +
			"One that does not exist any more is marked as deleted.\n" +
			"The Deployments of workspaces are not listed: `lockstep ws list` shows workspaces.",
		Example: `  lockstep deploys list --since 7d
  lockstep deploys list shop/web --limit 0
  lockstep deploys list --stuck -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			if limit < 0 {
				return fault.New(errcode.InvalidArgument, "--limit %d must not be negative", limit)
			}
			wanted, err := filter.read(args, time.Now())
			if err != nil {
				return err
			}
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			if err := filter.resolve(c.Context(), a); err != nil {
				return err
			}
			found, err := listRollouts(c.Context(), api, wanted, limit)
			if err != nil {
				return err
			}
			return a.print(found, rolloutTable(found.GetRollouts()))
		},
	}
	filter.flags(a, c, true)
	c.Flags().IntVar(&limit, "limit", 50, "largest number of rollouts; 0 for all")
	return c
}

const maxRolloutPage = 500

func listRollouts(
	ctx context.Context, api *client.Deploys, filter *deploysv1.RolloutFilter, limit int,
) (*deploysv1.ListRolloutsResponse, error) {
	all := &deploysv1.ListRolloutsResponse{}
	for token := ""; ; {
		size := maxRolloutPage
		if limit > 0 {
			size = min(size, limit-len(all.GetRollouts()))
		}
		response, err := api.Rollouts.ListRollouts(ctx,
			connect.NewRequest(&deploysv1.ListRolloutsRequest{Filter: filter, PageSize: int32(size), PageToken: token}))
		if err != nil {
			return nil, err
		}
		all.Rollouts = append(all.Rollouts, response.Msg.GetRollouts()...)
		token = response.Msg.GetNextPageToken()
		if token == "" || limit > 0 && len(all.GetRollouts()) >= limit {
			all.NextPageToken = token
			return all, nil
		}
	}
}

func rolloutTable(rollouts []*deploysv1.Rollout) table {
	t := table{header: []string{
		"STARTED", "WORKLOAD", "REVISION", "CHANGE", "STATE", "DURATION", "PODS", "IMAGES", "REASON",
	}}
	for _, r := range rollouts {
		took, pods := board.Span(board.Age(r, time.Now())), ""
		if c := r.GetCounts(); c != nil {
			pods = strconv.Itoa(int(c.GetUpdated())) + "/" + strconv.Itoa(int(c.GetDesired()))
		}
		t.rows = append(t.rows, []string{
			clock(r.GetStartedAt()),
			workloadName(r),
			strconv.FormatInt(r.GetRevision(), 10),
			board.Change(r),
			board.State(r),
			took,
			pods,
			board.Images(r),
			board.Why(r),
		})
	}
	return t
}

// workloadName returns the name of the workload, and whether it was deleted.
func workloadName(r *deploysv1.Rollout) string {
	if r.GetWorkload().GetDeleted() {
		return board.Name(r) + " (deleted)"
	}
	return board.Name(r)
}

// clock returns a local time with milliseconds, "" for none.
func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format("2006-01-02 15:04:05.000")
}

func (a *app) deploysGet() *cobra.Command {
	request := &deploysv1.GetRolloutRequest{}
	var cluster string
	c := &cobra.Command{
		Use: "get WORKLOAD|ROLLOUT", Short: "Show one rollout and its facts", Args: exactly("WORKLOAD or ROLLOUT"),
		ValidArgsFunction: a.completeWorkloads,
		Long: "Show a rollout by its id, or the newest one of a workload, and its facts in order.\n" +
			"WORKLOAD is NAMESPACE/KIND/NAME, or NAMESPACE/NAME of a Deployment.",
		Example: "  lockstep deploys get shop/web\n  lockstep deploys get shop/statefulset/db --revision 4",
		RunE: func(c *cobra.Command, args []string) error {
			// Ids have four parts or more: cluster, UID, revision and hash.
			if strings.Count(args[0], "/") >= 3 {
				request.Id = args[0]
			} else {
				w, err := workloadOf(args[0])
				if err != nil {
					return err
				}
				w.ClusterUid = cluster
				request.Workload = w
			}
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			response, err := api.Rollouts.GetRollout(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			if err := a.print(response.Msg, rolloutFields(names, response.Msg.GetRollout())); err != nil ||
				a.output != outputTable {
				return err
			}
			if err := a.write("\n"); err != nil {
				return err
			}
			if err := a.printTable(factTable(response.Msg.GetFacts())); err != nil ||
				response.Msg.GetFactsOmitted() == 0 {
				return err
			}
			return a.note("%d facts after the first one are not shown: see `lockstep replay`", response.Msg.GetFactsOmitted())
		},
	}
	c.Flags().Int64Var(&request.Revision, "revision", 0, "revision of the workload; default: the newest")
	c.Flags().StringVar(&cluster, "cluster", "", "UID of the cluster, when several have this workload")
	return c
}

func rolloutFields(names *names, r *deploysv1.Rollout) table {
	t := table{header: []string{"FIELD", "VALUE"}}
	add := func(name, value string) {
		if value != "" {
			t.rows = append(t.rows, []string{name, value})
		}
	}
	add("workload", workloadName(r))
	add("id", r.GetId())
	add("change", board.Change(r))
	add("state", board.State(r))
	if board.Running(r) {
		add("waiting", board.Waits(r))
	} else {
		add("message", strings.Join(strings.Fields(r.GetReason()+" "+r.GetMessage()), " "))
	}
	if r.GetCounts() != nil {
		add("pods", board.Counts(r.GetCounts()))
	}
	for _, image := range r.GetImages() {
		add("image "+image.GetContainer(), image.GetImage())
	}
	add("strategy", r.GetStrategy())
	add("commit", r.GetCommit())
	add("environment", r.GetGroup())
	add("started", clock(r.GetStartedAt()))
	add("ended", clock(r.GetEndedAt()))
	add("drained", clock(r.GetDrainedAt()))
	add("duration", board.Span(board.Age(r, time.Now())))
	add("superseded by", r.GetSupersededBy())
	add("agent", names.agent(r.GetWorkload().GetAgentId()))
	if r.GetReconstructed() {
		add("reconstructed", "yes, from what the cluster still had")
	}
	return t
}

func factTable(facts []*deploysv1.Fact) table {
	t := table{header: []string{"OCCURRED", "OBSERVED", "FACT", "PODS", "REASON", "ID"}}
	for _, f := range facts {
		name, pods := f.GetFact(), ""
		if f.GetOrdinal() > 1 {
			name += " #" + strconv.FormatInt(f.GetOrdinal(), 10)
		}
		if f.GetReconstructed() {
			name += " (reconstructed)"
		}
		if f.GetCounts() != nil {
			pods = board.Counts(f.GetCounts())
		}
		why := strings.Join(strings.Fields(f.GetReason()+" "+f.GetMessage()), " ")
		t.rows = append(t.rows, []string{clock(f.GetOccurredAt()), clock(f.GetObservedAt()), name, pods, why, f.GetId()})
	}
	return t
}
