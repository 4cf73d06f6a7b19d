package api

import (
	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// Scopes returns the scope that each method needs. Methods that give access to somebody or something need
// [libaccess.ScopeAdmin], as do those about the whole cell.
func Scopes() libaccess.Scopes {
	return libaccess.Scopes{
		statev1connect.AgentServiceConfigureAgentProcedure: libaccess.ScopeAdmin,
		statev1connect.AgentServiceGetAgentProcedure:       libaccess.ScopeRead,
		statev1connect.AgentServiceListAgentsProcedure:     libaccess.ScopeRead,
		statev1connect.AgentServiceRegisterAgentProcedure:  libaccess.ScopeAdmin,
		statev1connect.AgentServiceRequestResyncProcedure:  libaccess.ScopeWrite,
		statev1connect.AgentServiceRotateAgentProcedure:    libaccess.ScopeAdmin,
		statev1connect.AgentServiceRevokeAgentProcedure:    libaccess.ScopeAdmin,

		statev1connect.DirectoryServiceBlockUserProcedure:          libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceCreateGroupProcedure:        libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceCreateOrganizationProcedure: libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceCreateProjectProcedure:      libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceCreateUserProcedure:         libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceDeleteMembershipProcedure:   libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceListGroupsProcedure:         libaccess.ScopeRead,
		statev1connect.DirectoryServiceListMembershipsProcedure:    libaccess.ScopeRead,
		statev1connect.DirectoryServiceListOrganizationsProcedure:  libaccess.ScopeRead,
		statev1connect.DirectoryServiceListProjectsProcedure:       libaccess.ScopeRead,
		statev1connect.DirectoryServiceListUsersProcedure:          libaccess.ScopeRead,
		statev1connect.DirectoryServicePutMembershipProcedure:      libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceUnblockUserProcedure:        libaccess.ScopeAdmin,
		statev1connect.DirectoryServiceWhoAmIProcedure:             libaccess.ScopeRead,

		// It is served to everybody.
		statev1connect.GatewayServiceGetGatewayProcedure: libaccess.ScopeRead,

		statev1connect.MoveServiceBeginMoveProcedure:          libaccess.ScopeAdmin,
		statev1connect.MoveServiceCheckMoveProcedure:          libaccess.ScopeRead,
		statev1connect.MoveServiceEndMoveProcedure:            libaccess.ScopeAdmin,
		statev1connect.MoveServiceExportOrganizationProcedure: libaccess.ScopeAdmin,
		statev1connect.MoveServiceGetMoveProcedure:            libaccess.ScopeRead,
		statev1connect.MoveServiceImportOrganizationProcedure: libaccess.ScopeAdmin,

		statev1connect.OperationServiceDropDeadLetterProcedure:  libaccess.ScopeAdmin,
		statev1connect.OperationServiceRebuildProcedure:         libaccess.ScopeAdmin,
		statev1connect.OperationServiceRetryDeadLetterProcedure: libaccess.ScopeAdmin,

		statev1connect.PullSecretServiceListPullSecretsProcedure:  libaccess.ScopeRead,
		statev1connect.PullSecretServicePutPullSecretProcedure:    libaccess.ScopeAdmin,
		statev1connect.PullSecretServiceRemovePullSecretProcedure: libaccess.ScopeAdmin,

		statev1connect.SSHKeyServiceAddSSHKeyProcedure:    libaccess.ScopeAdmin,
		statev1connect.SSHKeyServiceListSSHKeysProcedure:  libaccess.ScopeRead,
		statev1connect.SSHKeyServiceRemoveSSHKeyProcedure: libaccess.ScopeAdmin,

		statev1connect.SubscriberServiceCreateSubscriberProcedure: libaccess.ScopeAdmin,
		statev1connect.SubscriberServiceListSubscribersProcedure:  libaccess.ScopeRead,
		statev1connect.SubscriberServiceRevokeSubscriberProcedure: libaccess.ScopeAdmin,

		statev1connect.TemplateServiceGetTemplateProcedure:   libaccess.ScopeRead,
		statev1connect.TemplateServiceListTemplatesProcedure: libaccess.ScopeRead,
		statev1connect.TemplateServicePutTemplateProcedure:   libaccess.ScopeWrite,

		statev1connect.TokenServiceCreateTokenProcedure: libaccess.ScopeAdmin,
		// The access token has the same scope.
		statev1connect.TokenServiceExchangeTokenProcedure: libaccess.ScopeRead,
		statev1connect.TokenServiceListTokensProcedure:    libaccess.ScopeRead,
		statev1connect.TokenServiceRevokeTokenProcedure:   libaccess.ScopeAdmin,

		statev1connect.WorkspaceAccessServiceExtendWorkspaceProcedure:  libaccess.ScopeWrite,
		statev1connect.WorkspaceAccessServiceListSharesProcedure:       libaccess.ScopeRead,
		statev1connect.WorkspaceAccessServiceShareWorkspaceProcedure:   libaccess.ScopeAdmin,
		statev1connect.WorkspaceAccessServiceUnshareWorkspaceProcedure: libaccess.ScopeAdmin,

		statev1connect.WorkspaceServiceAdoptOrphanProcedure:         libaccess.ScopeWrite,
		statev1connect.WorkspaceServiceCreateWorkspaceProcedure:     libaccess.ScopeWrite,
		statev1connect.WorkspaceServiceDeleteOrphanProcedure:        libaccess.ScopeWrite,
		statev1connect.WorkspaceServiceGetWorkspaceProcedure:        libaccess.ScopeRead,
		statev1connect.WorkspaceServiceListOrphansProcedure:         libaccess.ScopeRead,
		statev1connect.WorkspaceServiceListWorkspaceEventsProcedure: libaccess.ScopeRead,
		statev1connect.WorkspaceServiceListWorkspacesProcedure:      libaccess.ScopeRead,
		statev1connect.WorkspaceServiceSetDesiredStateProcedure:     libaccess.ScopeWrite,
		statev1connect.WorkspaceServiceUpdateWorkspaceProcedure:     libaccess.ScopeWrite,
		statev1connect.WorkspaceServiceWatchWorkspacesProcedure:     libaccess.ScopeRead,
	}
}
