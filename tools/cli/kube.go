package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauth "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	kubeconfig "k8s.io/client-go/tools/clientcmd/api"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

const (
	kubeCredentialCommand = "kube-credential"
	// margin is the time before its expiry at which a token is no longer used.
	margin = 10 * time.Second
	// execInfo is the variable of the credential plugin protocol of client-go.
	execInfo = "KUBERNETES_EXEC_INFO"
)

func (a *app) kubeConfig() *cobra.Command {
	var file, context string
	c := &cobra.Command{
		Use:               "kube-config AGENT",
		Short:             "Configure kubectl to reach the cluster of an agent through the relay",
		Args:              exactly("AGENT"),
		ValidArgsFunction: a.completeAgents,
		Long: `Add a context for the cluster of an agent to the configuration of kubectl, or to --file, and make it
the current one. Kubernetes clients then reach the cluster through the relay. Your user there is lockstep:user:<your
id>, with a group for your role in the project of the agent. The role bindings of the cluster decide what they may do.

The context has no credential: kubectl runs lockstep kube-credential with the current client configuration.`,
		Example: `  lockstep kube-config my-cluster && kubectl get pods
  lockstep kube-config my-cluster --file my-cluster.yaml && kubectl --kubeconfig my-cluster.yaml get pods`,
		RunE: func(c *cobra.Command, args []string) error {
			relay, api, err := a.relay()
			if err != nil {
				return err
			}
			relay.Close()
			if !strings.HasPrefix(a.client.RelayServer, "https://") {
				return fault.New(
					errcode.FailedPrecondition,
					"kubectl sends credentials over HTTPS only, but the relay is %s: configure its "+
						"certificate (external.tls)",
					a.client.RelayServer,
				)
			}
			id, err := agentID(c.Context(), api, args[0])
			if err != nil {
				return err
			}
			agent, err := api.Agents.GetAgent(c.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: id}))
			if err != nil {
				return err
			}
			if context == "" {
				context = "lockstep-" + agent.Msg.GetAgent().GetName()
			}
			written, err := a.writeContext(id, context, file)
			if err != nil {
				return err
			}
			return a.note("set the current context of %[3]s to %[1]q for agent %[2]s", context, agent.Msg.GetAgent().GetName(),
				written)
		},
	}
	c.Flags().StringVar(&file, "file", "", "file to write; default: KUBECONFIG or ~/.kube/config")
	c.Flags().StringVar(&context, "context", "", "name of the context; default: lockstep-<name of the agent>")
	return c
}

// writeContext adds the context, or replaces the one with this name. It changes nothing else in the
// file.
func (a *app) writeContext(agent int64, name, file string) (written string, err error) {
	cluster := kubeconfig.NewCluster()
	path := "/agents/" + strconv.FormatInt(agent, 10) + "/kubernetes"
	cluster.Server = strings.TrimSuffix(a.client.RelayServer, "/") + path
	if a.client.RelayCAFile != "" {
		if cluster.CertificateAuthorityData, err = client.ReadCACertificates(a.client.RelayCAFile); err != nil {
			return "", err
		}
	}
	user := kubeconfig.NewAuthInfo()
	if user.Exec, err = a.plugin(); err != nil {
		return "", err
	}
	context := kubeconfig.NewContext()
	context.Cluster, context.AuthInfo = name, name

	options := clientcmd.NewDefaultPathOptions()
	options.LoadingRules.ExplicitPath = file
	written = options.GetDefaultFilename()
	found, err := options.GetStartingConfig()
	if err != nil {
		return "", fault.Wrap(err, errcode.InvalidArgument, "read the kubectl configuration %s: %v", written, err)
	}
	if before := found.Clusters[name]; before != nil { // keep it in its file
		cluster.LocationOfOrigin = before.LocationOfOrigin
	}
	if before := found.AuthInfos[name]; before != nil {
		user.LocationOfOrigin = before.LocationOfOrigin
	}
	if before := found.Contexts[name]; before != nil {
		context.LocationOfOrigin, context.Namespace = before.LocationOfOrigin, before.Namespace
	}
	found.Clusters[name], found.AuthInfos[name], found.Contexts[name], found.CurrentContext = cluster, user, context, name
	if err := clientcmd.ModifyConfig(options, *found, false); err != nil {
		return "", fault.Wrap(err, errcode.Internal, "write the kubectl configuration %s: %v", written, err)
	}
	return written, nil
}

// plugin returns the credential plugin: this program with the current configuration.
func (a *app) plugin() (*kubeconfig.ExecConfig, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	clientFile, err := filepath.Abs(a.clientFile)
	if err != nil {
		return nil, fmt.Errorf("find the client configuration: %w", err)
	}
	exec := &kubeconfig.ExecConfig{
		APIVersion:      clientauth.SchemeGroupVersion.String(),
		Command:         program,
		Args:            []string{kubeCredentialCommand},
		InteractiveMode: kubeconfig.NeverExecInteractiveMode,
		InstallHint: "Install lockstep, the command line of Lockstep, and write the context again with: " +
			"lockstep kube-config AGENT",
		Env: []kubeconfig.ExecEnvVar{{Name: client.Variable, Value: clientFile}},
	}
	inFile, err := client.Read(a.clientFile)
	if err != nil {
		return nil, err
	}
	if a.client.Server != inFile.Server {
		exec.Env = append(exec.Env, kubeconfig.ExecEnvVar{Name: variableServer, Value: a.client.Server})
	}
	if a.client.TokenFile != inFile.TokenFile {
		tokenFile, err := filepath.Abs(a.client.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("find the personal access token: %w", err)
		}
		exec.Env = append(exec.Env, kubeconfig.ExecEnvVar{Name: variableTokenFile, Value: tokenFile})
	}
	return exec, nil
}

func (a *app) kubeCredential() *cobra.Command {
	return &cobra.Command{
		Use:   kubeCredentialCommand,
		Short: "Print a credential for the relay, for kubectl",
		Args:  exactly(),
		Long: `Print an access token for the relay as an ExecCredential of client.authentication.k8s.io/v1. kubectl
runs this command for a context of lockstep kube-config. The API exchanges your personal access token for the access
token, which expires after minutes and is not stored.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkExecInfo(os.Getenv(execInfo)); err != nil {
				return err
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			token, err := api.AccessToken(c.Context(), client.RelayAudience)
			if err != nil {
				return err
			}
			raw, err := json.Marshal(clientauth.ExecCredential{
				TypeMeta: metav1.TypeMeta{APIVersion: clientauth.SchemeGroupVersion.String(), Kind: "ExecCredential"},
				Status: &clientauth.ExecCredentialStatus{
					Token:               token.Value,
					ExpirationTimestamp: &metav1.Time{Time: token.ExpiresAt.Add(-margin)},
				},
			})
			if err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return a.write(string(raw) + "\n")
		},
	}
}

// checkExecInfo rejects a client with another version of the plugin protocol.
func checkExecInfo(info string) error {
	if info == "" {
		return nil
	}
	var wanted metav1.TypeMeta
	if err := json.Unmarshal([]byte(info), &wanted); err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "%s is malformed: %v", execInfo, err)
	}
	if wanted.APIVersion != clientauth.SchemeGroupVersion.String() {
		return fault.New(
			errcode.InvalidArgument,
			"the client requests a credential of version %q, want %s: write the context again with lockstep "+
				"kube-config",
			wanted.APIVersion,
			clientauth.SchemeGroupVersion,
		)
	}
	return nil
}
