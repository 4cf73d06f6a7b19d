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
		Use: "clusters", Short: "Show whose clusters are, and release one", Args: exactly(),
		Long: `Show every cluster that was reported, and the project whose it is: the one whose agent reported it first. What agents of other projects say of its
workloads is put on DEAD. -o json shows whose each was before, too, and who decided that. For administrators.`,
		Example: "  lockstep deploys clusters\n  lockstep deploys clusters release 6f1d9c34-0b5e-4c7e-9f0a-2d1f6f4f5a10 --to 12",
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			response, err := api.Clusters.ListClusters(c.Context(), connect.NewRequest(&deploysv1.ListClustersRequest{}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, clusterTable(response.Msg.GetClusters()...))
		},
	}
	c.AddCommand(a.clusterRelease())
	return c
}

func clusterTable(clusters ...*deploysv1.Cluster) table {
	t := table{header: []string{"CLUSTER", "PROJECT", "SINCE", "BY", "AGENTS", "WORKLOADS", "RUNNING"}}
	for _, c := range clusters {
		claim := c.GetClaims()[len(c.GetClaims())-1]
		agents := make([]string, len(c.GetAgentIds()))
		for i, id := range c.GetAgentIds() {
			agents[i] = strconv.FormatInt(id, 10)
		}
		by := "agent " + strconv.FormatInt(claim.GetAgentId(), 10)
		if claim.GetAgentId() == 0 {
			by = "user " + strconv.FormatInt(claim.GetUserId(), 10)
		}
		t.rows = append(t.rows, []string{
			c.GetClusterUid(), project(c.GetProjectId()), age(claim.GetClaimedAt()), by, strings.Join(agents, ","),
			strconv.FormatInt(c.GetWorkloads(), 10), strconv.FormatInt(c.GetRunningRollouts(), 10),
		})
	}
	return t
}

// project is one that may be nobody's.
func project(id int64) string {
	if id == 0 {
		return "nobody"
	}
	return strconv.FormatInt(id, 10)
}

func whose(id int64) string {
	if id == 0 {
		return "nobody's"
	}
	return "project " + project(id) + "'s"
}

func (a *app) clusterRelease() *cobra.Command {
	request := &deploysv1.ReleaseClusterRequest{}
	var yes bool
	c := &cobra.Command{
		Use: "release CLUSTER [--to PROJECT]", Short: "Take a cluster from its project, for one that its agent is enrolled in now", Args: exactly("CLUSTER"),
		Long: `Take a cluster from the project that it is, as when its agent was enrolled anew in another one. With --to it is that project's from then on, and what others say
of it stays refused; without, it is the next one's whose agent reports it: be sure then that the agent of its last project is away.

The history stays with the project that it was. Rollouts in flight end as unknown, since those who were told of their start will not hear of their end. The next full
resync of an agent of the other project is a silent baseline: neither what is there nor what came to be there in between is told as a deploy. Nothing of it can be taken
back but by releasing the cluster again. For administrators; who it was, and why, is kept.`,
		Example: `  lockstep deploys clusters release 6f1d9c34-0b5e-4c7e-9f0a-2d1f6f4f5a10 --to 12 --reason 'moved to the platform team'`,
		RunE: func(c *cobra.Command, args []string) error {
			request.ClusterUid = args[0]
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			if !yes {
				if err := a.confirm(c, "This takes the cluster from its project, and ends its rollouts in flight as unknown.", args[0]); err != nil {
					return err
				}
			}
			response, err := api.Clusters.ReleaseCluster(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if err := a.noteRelease(response.Msg, request.GetToProjectId()); err != nil {
				return err
			}
			return a.print(response.Msg, clusterTable(response.Msg.GetCluster()))
		},
	}
	c.Flags().Int64Var(&request.ToProjectId, "to", 0, "id of the project whose it is from then on; default: the next one's whose agent reports it")
	c.Flags().StringVar(&request.Reason, "reason", "", "why, for those who look later")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// noteRelease says what became of it, and what is left to do.
func (a *app) noteRelease(r *deploysv1.ReleaseClusterResponse, to int64) error {
	if r.GetPending() {
		return a.note("the release is stored and takes effect as soon as the service deploys has read what was said before it; `lockstep deploys clusters` shows when")
	}
	if err := a.note("cluster %s was %s and is %s; rollouts that ended as unknown: %d", r.GetCluster().GetClusterUid(), whose(r.GetFromProjectId()), whose(to),
		r.GetEndedRollouts()); err != nil {
		return err
	}
	return a.note("what an agent said of it while it was refused is not made up for by itself: `lockstep agent resync AGENT` has it list the cluster anew, " +
		"`lockstep dead drop --all --service deploys --subject 'observed.AGENT.>'` removes what was refused")
}
