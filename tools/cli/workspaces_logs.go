package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// maxPodList is the greatest size of a list of pods in bytes.
const maxPodList = 8 << 20

func (a *app) workspaceLogs() *cobra.Command {
	var follow bool
	var container string
	var tail int64
	c := &cobra.Command{
		Use:               "logs WORKSPACE",
		Short:             "Print the output of a workspace's container",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
		Long: `Print the output of a container of a workspace, from its newest pod, through the relay. The role
bindings of the cluster decide whether you may read it. The container lockstep-clone has cloned the projects.`,
		Example: `  lockstep ws logs mine --follow
  lockstep ws logs mine --container lockstep-clone`,
		RunE: func(c *cobra.Command, args []string) error {
			_, w, err := a.workspace(c.Context(), args[0])
			if err != nil {
				return err
			}
			relay, _, err := a.relay()
			if err != nil {
				return err
			}
			defer relay.Close()
			pod, err := newestPod(c.Context(), relay, w)
			if err != nil {
				return err
			}
			query := url.Values{"container": {container}, "follow": {strconv.FormatBool(follow)}}
			if tail >= 0 {
				query.Set("tailLines", strconv.FormatInt(tail, 10))
			}
			log, err := relay.Kubernetes(c.Context(), w.GetAgentId(),
				"/api/v1/namespaces/"+url.PathEscape(w.GetNamespace())+"/pods/"+url.PathEscape(pod)+"/log", query)
			if err != nil {
				return err
			}
			defer log.Close() //nolint:errcheck // read to its end, or interrupted
			if _, err := io.Copy(a.stdout, log); err != nil && c.Context().Err() == nil {
				return fault.Wrap(err, errcode.Unavailable, "lost the log of %s: %v", w.GetName(), err)
			}
			return c.Context().Err()
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print new lines until the container ends or Ctrl-C")
	c.Flags().StringVar(&container, "container", "workspace", "name of the container")
	c.Flags().Int64Var(&tail, "tail", -1, "number of the last lines to print; default: all")
	return c
}

// newestPod returns the name of the newest pod of a workspace.
func newestPod(ctx context.Context, relay *client.Relay, w *statev1.Workspace) (string, error) {
	body, err := relay.Kubernetes(ctx, w.GetAgentId(), "/api/v1/namespaces/"+url.PathEscape(w.GetNamespace())+"/pods",
		url.Values{"labelSelector": {"lockstep.dev/workspace=" + w.GetId()}})
	if err != nil {
		return "", err
	}
	defer body.Close() //nolint:errcheck // it was read
	var pods corev1.PodList
	if err := json.NewDecoder(io.LimitReader(body, maxPodList)).Decode(&pods); err != nil {
		return "", fmt.Errorf("read the pods of the workspace: %w", err)
	}
	var newest *metav1.ObjectMeta
	for i := range pods.Items {
		if pod := &pods.Items[i].ObjectMeta; newest == nil || newest.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest = pod
		}
	}
	if newest == nil {
		return "", fault.New(errcode.FailedPrecondition, "workspace %q has no pod, so it has no log: start it with "+
			"`lockstep ws start %s --wait`", w.GetName(), w.GetName())
	}
	return newest.Name, nil
}
