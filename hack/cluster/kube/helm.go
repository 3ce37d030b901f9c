package main

import (
	"errors"
	"log/slog"
	"os"

	helmcmd "helm.sh/helm/v4/pkg/cmd"
	helmkube "helm.sh/helm/v4/pkg/kube"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

// helm does what Helm's own main package does; that one cannot be imported.
func helm(args []string) int {
	helmkube.ManagedFieldsManager = "helm"
	cmd, err := helmcmd.NewRootCmd(os.Stdout, args[1:], helmcmd.SetupLogging)
	if err != nil {
		slog.Warn("command failed", slog.Any("error", err))
		return 1
	}
	if err := cmd.Execute(); err != nil {
		if failed, ok := errors.AsType[helmcmd.CommandError](err); ok {
			return failed.ExitCode
		}
		return 1
	}
	return 0
}
