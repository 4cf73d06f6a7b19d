package cli

import (
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

func (a *app) deploysClusters() *cobra.Command {
	c := &cobra.Command{
		Use:   "clusters",
		Short: "List clusters and their projects, and release one",
		Args:  exactly(),
		Long: `List the clusters and their projects. A cluster belongs to the project of the agent that reported it
first. Reports by agents of other projects become dead letters. -o json shows the earlier projects, too. Only
administrators may run this.`,
		Example: "  lockstep deploys clusters\n  lockstep deploys clusters release " +
			"6f1d9c34-0b5e-4c7e-9f0a-2d1f6f4f5a10 --to acme/platform/web",
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			response, err := api.Clusters.ListClusters(c.Context(), connect.NewRequest(&deploysv1.ListClustersRequest{}))
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			return a.print(response.Msg, clusterTable(names, response.Msg.GetClusters()...))
		},
	}
	c.AddCommand(a.clusterRelease())
	return c
}

func clusterTable(names *names, clusters ...*deploysv1.Cluster) table {
	t := table{header: []string{"CLUSTER", "PROJECT", "SINCE", "BY", "AGENTS", "WORKLOADS", "RUNNING"}}
	for _, c := range clusters {
		claim := c.GetClaims()[len(c.GetClaims())-1]
		agents := make([]string, len(c.GetAgentIds()))
		for i, id := range c.GetAgentIds() {
			agents[i] = names.agent(id)
		}
		by := "agent " + names.agent(claim.GetAgentId())
		if claim.GetAgentId() == 0 {
			by = "user " + names.user(claim.GetUserId())
		}
		t.rows = append(t.rows, []string{
			c.GetClusterUid(), projectOrNone(names, c.GetProjectId()), age(claim.GetClaimedAt()), by, strings.Join(agents, ","),
			strconv.FormatInt(c.GetWorkloads(), 10), strconv.FormatInt(c.GetRunningRollouts(), 10),
		})
	}
	return t
}

// projectOrNone returns the path of a project, "none" for 0.
func projectOrNone(names *names, id int64) string {
	if id == 0 {
		return "none"
	}
	return names.project(id)
}

func (a *app) clusterRelease() *cobra.Command {
	request := &deploysv1.ReleaseClusterRequest{}
	var to string
	var yes bool
	c := &cobra.Command{
		Use:   "release CLUSTER [--to PROJECT]",
		Short: "Move a cluster to another project",
		Args:  exactly("CLUSTER"),
		Long: `Take a cluster from its project, for example after its agent was registered in another one. With --to,
the cluster belongs to that project from now on. Without --to, it belongs to the project of the next agent that
reports it: stop the agent of the old project first.

The history stays with the old project. Running rollouts end as unknown, since subscribers of the old project cannot see
their end. The next full resync of the new project is a baseline: no deploys are published for changes before it. Only
another release reverts this. Only administrators may run it; the user and the reason are stored.`,
		Example: "  lockstep deploys clusters release 6f1d9c34-0b5e-4c7e-9f0a-2d1f6f4f5a10 --to acme/platform/web " +
			"--reason 'moved to the platform team'",
		RunE: func(c *cobra.Command, args []string) error {
			request.ClusterUid = args[0]
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			if request.ToProjectId, err = names.projectID(to); err != nil {
				return err
			}
			if !yes {
				if err := a.confirm(c, "This takes the cluster from its project and ends its running rollouts as unknown.",
					args[0]); err != nil {
					return err
				}
			}
			response, err := api.Clusters.ReleaseCluster(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if err := a.noteRelease(names, response.Msg, request.GetToProjectId()); err != nil {
				return err
			}
			return a.print(response.Msg, clusterTable(names, response.Msg.GetCluster()))
		},
	}
	a.projectFlag(c, &to, "to", "new project; default: that of the next agent that reports the cluster")
	c.Flags().StringVar(&request.Reason, "reason", "", "reason to store")
	yesFlag(c, &yes)
	return c
}

// noteRelease prints the result and the next steps.
func (a *app) noteRelease(names *names, r *deploysv1.ReleaseClusterResponse, to int64) error {
	if r.GetPending() {
		return a.note(
			"stored the release; it takes effect when the deploys service has read the earlier messages: see `lockstep " +
				"deploys clusters`",
		)
	}
	if err := a.note("moved cluster %s from project %s to %s; rollouts that ended as unknown: %d",
		r.GetCluster().GetClusterUid(), projectOrNone(names, r.GetFromProjectId()), projectOrNone(names, to),
		r.GetEndedRollouts()); err != nil {
		return err
	}
	return a.note(
		"rejected reports of an agent are not processed again: `lockstep agent resync AGENT` lists the cluster again, " +
			"`lockstep dead drop --all --service deploys --subject 'observed.AGENT.>'` removes the rejected reports",
	)
}
