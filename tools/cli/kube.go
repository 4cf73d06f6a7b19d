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
	// margin is how long before its end a token is not used any more.
	margin = 10 * time.Second
	// execInfo is what kubectl tells its plugins (https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins).
	execInfo = "KUBERNETES_EXEC_INFO"
)

func (a *app) kubeConfig() *cobra.Command {
	var file, context string
	c := &cobra.Command{
		Use: "kube-config AGENT", Short: "Let kubectl reach the cluster of an agent, through the relay", Args: exactly("AGENT"), ValidArgsFunction: a.completeAgents,
		Long: `Add a context to kubectl's configuration, or to --file, with which kubectl and other clients of Kubernetes reach the cluster of an agent through the relay, and make it the current
one. You appear there as lockstep:user:<your id>, with a group for your role in the agent's project; what these may do is said by the cluster's own bindings.

No credential is written: kubectl runs this program (lockstep kube-credential) for one that is good for minutes, with the client configuration that is used now.`,
		Example: `  lockstep kube-config my-cluster && kubectl get pods
  lockstep kube-config my-cluster --file my-cluster.yaml && kubectl --kubeconfig my-cluster.yaml get pods`,
		RunE: func(c *cobra.Command, args []string) error {
			relay, api, err := a.relay()
			if err != nil {
				return err
			}
			relay.Close()
			if !strings.HasPrefix(a.client.RelayServer, "https://") {
				return fault.New(errcode.FailedPrecondition, "kubectl shows credentials over HTTPS only, and the relay is %s: give it a certificate (external.tls)", a.client.RelayServer)
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
			return a.note("context %q for agent %d is the current one in %s", context, id, written)
		},
	}
	c.Flags().StringVar(&file, "file", "", "file to write to; default: kubectl's configuration, KUBECONFIG or ~/.kube/config")
	c.Flags().StringVar(&context, "context", "", "name of the context; default: lockstep-<name of the agent>")
	return c
}

// writeContext adds the context, or replaces the one of this name, and leaves everything else in the file as it is.
func (a *app) writeContext(agent int64, name, file string) (written string, err error) {
	cluster := kubeconfig.NewCluster()
	cluster.Server = strings.TrimSuffix(a.client.RelayServer, "/") + "/agents/" + strconv.FormatInt(agent, 10) + "/kubernetes"
	if a.client.RelayCAFile != "" {
		if cluster.CertificateAuthorityData, err = client.ReadAuthorities(a.client.RelayCAFile); err != nil {
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
		return "", fault.Wrap(err, errcode.InvalidArgument, "kubectl's configuration %s cannot be read: %v", written, err)
	}
	if before := found.Clusters[name]; before != nil { // it stays in the file where it is
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
		return "", fault.Wrap(err, errcode.Internal, "kubectl's configuration %s cannot be written: %v", written, err)
	}
	return written, nil
}

// plugin is how kubectl gets credentials: from this program, with the configuration that is used now.
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
		APIVersion: clientauth.SchemeGroupVersion.String(), Command: program, Args: []string{kubeCredentialCommand}, InteractiveMode: kubeconfig.NeverExecInteractiveMode,
		InstallHint: "Credentials for this cluster come from lockstep, the command line of Lockstep. Install it, and write the context anew with: lockstep kube-config AGENT",
		Env:         []kubeconfig.ExecEnvVar{{Name: client.Variable, Value: clientFile}},
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
		Use: kubeCredentialCommand, Short: "Print a credential for the relay, as kubectl wants it", Args: exactly(),
		Long: `Print an access token for the relay as an ExecCredential of client.authentication.k8s.io/v1. kubectl runs this by itself where lockstep kube-config has written its
configuration. The token is made from your personal access token, is good for minutes, and is written nowhere.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := wantsCredential(os.Getenv(execInfo)); err != nil {
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
				Status:   &clientauth.ExecCredentialStatus{Token: token.Value, ExpirationTimestamp: &metav1.Time{Time: token.ExpiresAt.Add(-margin)}},
			})
			if err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return a.write(string(raw) + "\n")
		},
	}
}

// wantsCredential refuses a client that speaks another version of the plugins' protocol.
func wantsCredential(info string) error {
	if info == "" {
		return nil
	}
	var wanted metav1.TypeMeta
	if err := json.Unmarshal([]byte(info), &wanted); err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "%s is malformed: %v", execInfo, err)
	}
	if wanted.APIVersion != clientauth.SchemeGroupVersion.String() {
		return fault.New(errcode.InvalidArgument, "a credential of version %q is wanted, and there are only such of %s: write the context anew with lockstep kube-config",
			wanted.APIVersion, clientauth.SchemeGroupVersion)
	}
	return nil
}
