"""What `tfcollective logs` shows of an application. Without YARN."""

import os

from tfcollective_launchers.yarn.logs import show_logs

APPLICATION = "application_1_1"
LOGS = """\
LogType:directory.info
LogContents:
ls -l
End of LogType:directory.info
LogType:launch_container.sh
LogContents:
export API_TOKEN="hunter2"
End of LogType:launch_container.sh.This log file belongs to a running container
LogType:worker-0.log
LogContents:
LogType:launch_container.shown
step 1
End of LogType:worker-0.log
"""


def test_logs_do_not_show_the_values_of_variables(tmp_path, monkeypatch, capfd):
    (tmp_path / "logs").write_text(LOGS)
    program = tmp_path / "yarn"
    program.write_text(f'#!/bin/sh\n[ "$*" = "logs -applicationId {APPLICATION}" ] && cat {tmp_path}/logs\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert show_logs(APPLICATION) == 3
    hidden = ("LogContents:\nls -l\n", 'LogContents:\nexport API_TOKEN="hunter2"\n')
    assert capfd.readouterr().out == LOGS.replace(hidden[0], "").replace(hidden[1], "")
